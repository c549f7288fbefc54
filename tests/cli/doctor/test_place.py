"""What is detected, compared with what the resolvers of TensorFlow's kind find in the same environment."""

import json
from pathlib import Path

import pytest

from tf_preempt._slurm_control import SlurmControl
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.place import describe_place, find_place
from tf_preempt.cluster_resolvers import auto
from tf_preempt.errors import SlurmError, TfPreemptError
from tf_preempt.termination.auto import Platform, detect_platform

RECORDED = Path(__file__).parents[2] / "data" / "slurm_env"
TASKS = [
    pytest.param(environ, id=f"{path.stem}-{task}")
    for path in sorted(RECORDED.glob("*.json"))
    for task, environ in sorted(json.loads(path.read_text(encoding="utf-8"))["tasks"].items())
]


@pytest.fixture(autouse=True)
def no_slurm_to_ask(monkeypatch):
    """Keeps the recorded heterogeneous steps from a controller that may be installed here."""

    def refuse(control, *words):
        raise SlurmError(f"{words} could not be asked")

    monkeypatch.setattr(SlurmControl, "ask", refuse)


def place_in(environ):
    return find_place(environ, detect_platform(environ, dmi_product_name=str))


def tf_config(cluster, **task):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, **({"task": task} if task else {})})}


TWO = {"worker": ["a:1", "b:2"]}


def found_by_resolver(environ):
    resolver = auto(dict(environ))
    spec = {job: list(tasks) for job, tasks in resolver.cluster_spec().as_dict().items()}
    return type(resolver).__name__, resolver.task_type, resolver.task_id, spec


def found_by_doctor(environ):
    place = place_in(environ)
    spec = {}
    for member in place.members:
        spec.setdefault(member.task_type, []).append(member.address)
    return place.resolver, place.task_type, place.task_id, spec


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("environ", TASKS)
def test_recorded_slurm_tasks_are_seen_as_the_resolver_sees_them(environ):
    place = place_in(environ)
    if place.resolver is not None:
        assert found_by_doctor(environ) == found_by_resolver(environ)
        return
    with pytest.raises(TfPreemptError) as refused:
        found_by_resolver(environ)
    assert place.troubles[0].message == " ".join(str(refused.value).split("\nHINT: ")[0].split())
    assert place.troubles[0].hint == refused.value.hint


@pytest.mark.parametrize(
    "environ",
    [
        {},
        tf_config(TWO, type="worker", index=1),
        tf_config({"worker": ["a:1"]}),
        tf_config({"worker": ["a:1"], "chief": ["c:3"]}, type="chief", index=0),
        tf_config({"worker": ["[::1]:1", "[::1]:2"]}, type="worker", index=0),
    ],
)
def test_other_environments_are_seen_as_the_resolver_sees_them(environ):
    assert found_by_doctor(environ) == found_by_resolver(environ)


def test_the_chief_speaks_for_all():
    cluster = {"ps": ["p:1"], "worker": ["a:1", "b:1"], "chief": ["c:1"]}
    chief = place_in(tf_config(cluster, type="chief", index=0))
    assert [member.name for member in chief.members] == ["chief 0", "worker 0", "worker 1", "ps 0"]
    assert (chief.rank, chief.is_first) == (0, True)
    assert place_in(tf_config(cluster, type="worker", index=0)).rank == 1


def test_an_evaluator_stands_outside():
    place = place_in(tf_config(TWO, type="evaluator", index=0))
    assert (place.rank, place.is_first) == (None, False)
    task = next(finding for finding in describe_place(place, host="h") if finding.name == "task")
    assert task.message == "evaluator 0, outside the cluster, on h, without a port"


def test_host_and_port_of_an_ipv6_address_have_no_brackets():
    own = place_in(tf_config({"worker": ["[::1]:7"]})).members[0]
    assert (own.host, own.port) == ("::1", 7)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not JSON"),
        ({"SLURM_JOB_ID": "many"}, "SLURM_JOB_ID"),
        ({"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, "SLURM_STEP_NUM_TASKS"),
    ],
)
def test_wrong_descriptions_are_errors_with_a_cure(environ, said):
    place = place_in(environ)
    trouble = describe_place(place, host="h")[-1]
    assert (trouble.status, trouble.name) == (Status.ERROR, "cluster")
    assert said in trouble.message
    assert place.rank == int(environ.get("SLURM_PROCID", 0))


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_NODELIST": "n[9-11]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}


def test_a_step_of_another_size_than_tf_config_is_a_warning():
    environ = {**STEP, **tf_config(TWO, type="worker", index=0)}
    place = place_in(environ)
    assert place.resolver == "TFConfigClusterResolver"
    assert [(finding.status, finding.name) for finding in place.troubles] == [(Status.WARNING, "cluster")]
    assert "describes 2 tasks, but the Slurm step 7.0 has 3" in place.troubles[0].message
    assert place.troubles[0].hint == "unset TF_CONFIG to train on the step's tasks"
    three = tf_config({"worker": ["a:1", "b:1", "c:1"]}, type="worker", index=0)
    assert place_in({**STEP, **three}).troubles == ()


def test_wrong_variables_of_slurm_beside_tf_config_are_a_warning():
    place = place_in({**STEP, "SLURM_PROCID": "3", **tf_config(TWO, type="worker", index=1)})
    assert (place.resolver, place.rank, place.job) == ("TFConfigClusterResolver", 1, None)
    assert [(finding.status, finding.name) for finding in place.troubles] == [(Status.WARNING, "cluster")]
    assert "TF_CONFIG is used; Slurm's variables are there too, but wrong: SLURM_PROCID=3" in (
        place.troubles[0].message
    )


def test_what_is_said_of_a_step():
    place = place_in(STEP)
    assert (place.platform, place.in_step) == (Platform.SLURM, True)
    findings = {finding.name: finding for finding in describe_place(place, host="h")}
    addresses = [member.address for member in place.members]
    assert [address.split(":")[0] for address in addresses] == ["n9", "n10", "n11"]
    assert all(address in findings["cluster"].message for address in addresses)
    assert findings["task"].values == {
        "type": "worker",
        "index": 1,
        "rank": 1,
        "host": "n10",
        "port": place.members[1].port,
    }


def test_a_long_list_of_tasks_is_cut():
    cluster = {"worker": [f"host{index}:1" for index in range(100)]}
    cluster_line = describe_place(place_in(tf_config(cluster, type="worker", index=0)), host="h")[1]
    assert "host7:1, ... (100 in all)" in cluster_line.message
    assert len(cluster_line.values["tasks"]) == 100
