"""Components of heterogeneous steps, against what Slurm 22.05.8 said about them."""

import dataclasses
from pathlib import Path

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.cluster_resolvers._slurm_components import (
    Component,
    StepComponents,
    component_jobs,
    is_ambiguous,
    read_component,
    with_components,
)
from tf_preempt.cluster_resolvers._slurm_layout import addresses, place_ranks
from tf_preempt.errors import SlurmError

DATA = Path(__file__).parents[1] / "data" / "slurm_show_step"


def recorded(name):
    """The answers to the questions of one task."""
    questions = (DATA / f"{name}.txt").read_text(encoding="utf-8").split("# scontrol ")[1:]
    return {question: answer for question, _, answer in (each.partition("\n") for each in questions)}


class Controller(SlurmControl):
    """Answers what was recorded, and counts."""

    def __init__(self, answers):
        super().__init__({})
        self.answers, self.asked = answers, []

    def ask(self, command, *arguments):
        question = " ".join(arguments)
        self.asked.append(question)
        if question not in self.answers:
            raise SlurmError(f"`{command} {question}` left with 1: Job step not found\nHINT: none")
        return self.answers[question]


# srun -m cyclic -n4 -N2 : -m block -n4 -N2, as all its tasks see it.
TWO_DISTRIBUTIONS = SlurmJob(
    job_id=30,
    step_id=0,
    procid=0,
    ntasks=8,
    nodes=("n9", "n10", "n11", "n12"),
    tasks_per_node=(3, 1, 3, 1),
    distribution="block",
    het_size=2,
    group_nodes=(2, 2),
)
# srun --het-group=0 : --het-group=1 -m cyclic:block,nopack, of a job on n11, n[9,12] and n10.
LATER_NODES_FIRST = SlurmJob(
    job_id=32,
    step_id=1,
    procid=0,
    ntasks=6,
    nodes=("n9", "n11", "n12"),
    tasks_per_node=(3, 2, 1),
    distribution="block",
    het_size=3,
)
LAYOUTS = [
    ("two_distributions", TWO_DISTRIBUTIONS, "n9 n10 n9 n9 n11 n11 n11 n12", ("cyclic", "block")),
    ("later_nodes_first", LATER_NODES_FIRST, "n11 n11 n9 n12 n9 n9", ("block", "cyclic")),
]


@pytest.mark.parametrize(("name", "job", "hosts", "distributions"), LAYOUTS)
def test_ranks_are_where_slurm_had_them(name, job, hosts, distributions):
    settled = StepComponents(Controller(recorded(name))).settle(job)
    assert [placement.node for placement in place_ranks(settled)] == hosts.split()
    assert settled.group_distributions == distributions
    assert sum(settled.group_nodes) == len(settled.nodes)
    changed = ("nodes", "tasks_per_node", "group_nodes", "group_distributions")
    same = {name: getattr(job, name) for name in changed}
    assert dataclasses.replace(settled, **same) == job


@pytest.mark.parametrize("procid", range(8))
def test_every_task_comes_to_the_same_whatever_distribution_it_is_told(procid):
    told = ("block", "cyclic", "plane", "arbitrary")[procid % 4]
    job = dataclasses.replace(TWO_DISTRIBUTIONS, procid=procid, distribution=told, hostfile="/nowhere/hosts")
    hosts = [address.partition(":")[0] for address in addresses(settle(job))]
    assert hosts == ["n9", "n10", "n9", "n9", "n11", "n11", "n11", "n12"]


def settle(job, name="two_distributions"):
    return StepComponents(Controller(recorded(name))).settle(job)


def test_the_controller_is_asked_once_for_the_components_in_the_step_only():
    controller = Controller(recorded("later_nodes_first"))
    components = StepComponents(controller)
    assert components.settle(LATER_NODES_FIRST) == components.settle(LATER_NODES_FIRST)
    assert controller.asked == ["show job -o 32", "show step -o 32.1", "show step -o 33.1"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"distribution": "cyclic"}, True),
        ({"distribution": ""}, True),
        ({"group_nodes": ()}, True),
        ({"group_nodes": (1, 1, 1, 1)}, False),
        ({"group_nodes": (4,)}, False),
        ({"group_nodes": (1, 1, 2)}, True),
        ({"tasks_per_node": (1, 1, 1, 1), "ntasks": 4}, False),
        ({"tasks_per_node": (1, 1, 1, 1), "ntasks": 4, "group_nodes": ()}, True),
        ({"tasks_per_node": (2, 1, 1, 1), "ntasks": 5, "group_nodes": (1, 3)}, False),
        ({"tasks_per_node": (1, 1, 2, 1), "ntasks": 5, "group_nodes": (1, 3)}, True),
        ({"tasks_per_node": None}, False),
        ({"het_size": 1, "group_nodes": ()}, False),
        ({"step_id": None}, False),
        ({"nodes": ("n9",), "tasks_per_node": (8,), "group_nodes": ()}, False),
    ],
)
def test_asks_only_where_the_variables_leave_it_open(change, expected):
    assert is_ambiguous(dataclasses.replace(TWO_DISTRIBUTIONS, **change)) == expected


def test_a_step_that_is_not_ambiguous_comes_back_as_it_is():
    controller = Controller({})
    job = dataclasses.replace(TWO_DISTRIBUTIONS, group_nodes=(4,))
    assert StepComponents(controller).settle(job) is job
    assert controller.asked == []


def test_components_come_in_slurms_order_and_not_in_that_of_the_answer():
    said = recorded("later_nodes_first")["show job -o 32"]
    assert component_jobs("\n".join(reversed(said.splitlines())), LATER_NODES_FIRST) == [32, 33]
    whole = dataclasses.replace(LATER_NODES_FIRST, nodes=("n10", "n9", "n11"))
    assert component_jobs(said, whole) == [32, 33, 34]


@pytest.mark.parametrize(
    "text", ["", "slurm_load_jobs error: Invalid job id", None], ids=["none", "error", "other"]
)
def test_an_answer_about_no_component_is_an_error(text):
    said = recorded("two_distributions")["show job -o 30"] if text is None else text
    with pytest.raises(SlurmError, match="tells nothing about the nodes of job 32"):
        component_jobs(said, LATER_NODES_FIRST)


STEP = (
    "StepId=7.3 UserId=1000 TimeLimit=UNLIMITED State=RUNNING Partition=low NodeList=n[9-10] Nodes=2 CPUs=4 "
    "Tasks=4 Name={name} Network=(null) TRES=(null) ResvPorts=(null) CPUFreqReq=Default Dist={dist} "
    "SrunHost:Pid=login1:4711"
)


# What Slurm 22.05.8 says of srun -m block, block:cyclic,pack, block:fcyclic:block, *:cyclic, cyclic, ...
@pytest.mark.parametrize(
    ("word", "distribution"),
    [
        *[(word, "block") for word in ("Block", "BBlock", "BCyclic,Pack", "BFCyclicBlock", "BBlockCyclic")],
        *[(word, "cyclic") for word in ("Cyclic", "Cyclic,NoPack", "CBlock", "CCyclic", "CFCyclicFCyclic")],
        ("Plane", "plane"),
        ("Arbitrary", "arbitrary"),
        ("Unknown", "unknown"),
    ],
)
def test_the_distribution_over_nodes_is_read(word, distribution):
    component = read_component(STEP.format(name="train", dist=word), "7.3")
    assert component == Component(nodes=("n9", "n10"), tasks=4, distribution=distribution)


@pytest.mark.parametrize(
    "name", ["Dist=Cyclic", "x Dist=Cyclic NodeList=n1 Tasks=9 ", "a\nStepId=7.3 Dist=Plane\n"]
)
def test_the_name_of_a_step_says_nothing(name):
    assert read_component(STEP.format(name=name, dist="Block"), "7.3").distribution == "block"
    assert read_component(STEP.format(name=name, dist="Block"), "7.3").tasks == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Job step 7.3 not found",
        STEP.replace("7.3", "7.30"),
        STEP.replace("Dist=", "x="),
        STEP.replace("Tasks", "x"),
    ],
    ids=["nothing", "error", "other-step", "no-distribution", "no-tasks"],
)
def test_an_answer_without_the_layout_is_an_error(text):
    with pytest.raises(SlurmError, match=r"`scontrol show step 7\.3` does not tell its layout"):
        read_component(text, "7.3")


@pytest.mark.parametrize(
    "components",
    [
        [(("n9", "n10"), 4), (("n11", "x12"), 4)],
        [(("n9", "n10"), 4), (("n11",), 3)],
        [(("n9", "n10"), 5), (("n11", "n12"), 3)],
        [(("n9", "n10"), 4), (("n10", "n11", "n12"), 5)],
    ],
)
def test_an_answer_that_contradicts_the_variables_is_an_error(components):
    parts = [Component(nodes=nodes, tasks=tasks, distribution="block") for nodes, tasks in components]
    with pytest.raises(
        SlurmError, match=r"but Slurm's variables \[3, 1, 3, 1\] on \['n9', 'n10', 'n11', 'n12'\]"
    ):
        with_components(TWO_DISTRIBUTIONS, parts)


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("show job -o 30", "`scontrol show job -o 30` left with 1"),
        ("show step -o 31.0", "`scontrol show step -o 31.0` left with 1"),
    ],
)
def test_what_could_not_be_asked_is_said_once_with_the_cure(caplog, lost, words):
    answers = recorded("two_distributions")
    del answers[lost]
    controller = Controller(answers)
    components = StepComponents(controller)
    assert components.settle(TWO_DISTRIBUTIONS) is TWO_DISTRIBUTIONS
    asked = len(controller.asked)
    assert components.settle(TWO_DISTRIBUTIONS) is TWO_DISTRIBUTIONS
    assert len(controller.asked) == asked
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "tf_preempt")
    assert words in record.getMessage()
    assert "taken to have the distribution block" in record.getMessage()
    assert "HINT: Let the tasks run scontrol" in record.getMessage()


def test_an_answer_that_does_not_fit_is_not_used(caplog):
    job = dataclasses.replace(TWO_DISTRIBUTIONS, tasks_per_node=(2, 2, 3, 1))
    answers = recorded("two_distributions")
    answers["show step -o 30.0"] = answers["show step -o 30.0"].replace("Tasks=4", "Tasks=3")
    assert StepComponents(Controller(answers)).settle(job) is job
    assert "has [3, 4] tasks on [['n9', 'n10'], ['n11', 'n12']]" in caplog.text


@pytest.mark.parametrize(
    ("distributions", "plane_size", "hosts"),
    [
        (("plane", "plane"), 2, "n9 n9 n10 n9 n11 n11 n12 n11"),
        (("plane", "plane"), None, None),
        (("plane", "block"), 2, None),
        (("block", "arbitrary"), None, None),
        (("unknown", "block"), None, None),
    ],
)
def test_planes_of_one_size_are_followed_and_what_is_not_known_is_refused(distributions, plane_size, hosts):
    job = dataclasses.replace(
        TWO_DISTRIBUTIONS, group_distributions=distributions, plane_size=plane_size, distribution="block"
    )
    if hosts is not None:
        assert [placement.node for placement in place_ranks(job)] == hosts.split()
        return
    with pytest.raises(SlurmError, match=r"Component [01] of the step has the distribution '\w+' on 2 nodes"):
        place_ranks(job)


def test_a_task_that_finds_itself_elsewhere_names_the_cure_for_components():
    job = dataclasses.replace(TWO_DISTRIBUTIONS, gtids=(0, 2, 3), nodeid=0)
    with pytest.raises(SlurmError, match="By block distribution") as caught:
        addresses(job)
    assert "the same `srun --distribution=block`" in caught.value.hint
    assert "in the order of their nodes" in caught.value.hint
    assert addresses(settle(job))[1].startswith("n10:")
