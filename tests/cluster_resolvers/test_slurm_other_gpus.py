"""How many GPUs tasks on other nodes have, by what the controller of a real Slurm said."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.cluster_resolvers._slurm_gpus import TaskNode
from tf_preempt.cluster_resolvers._slurm_other_gpus import GpusOfNodes, gpus_by_node, gpus_of_task
from tf_preempt.errors import SlurmError

RECORDED = Path(__file__).parents[1] / "data" / "slurm_show_job"
JOB = SlurmJob(job_id=9, step_id=0, procid=0, ntasks=2, nodes=("node1", "node2"), gpus_on_node=4)


def recorded(name):
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8").partition("\n")[2]


def line(*allocations, job_id=9, before=""):
    """An answer about a job; an allocation is nodes and what they give."""
    nodes = "".join(f"   Nodes={nodes} CPU_IDs=0-3 Mem=0 GRES={gres}" for nodes, gres in allocations)
    return f"JobId={job_id} {before}JobName=x UserId=ada(1) JobState=RUNNING JOB_GRES=gpu:6{nodes} Power=\n"


@pytest.mark.parametrize(
    ("text", "job_id", "numbers"),
    [
        (recorded("gpus"), 9, {"node1": 4, "node2": 2}),
        (recorded("gpus_heterogeneous"), 7, {"node3": 0, "node1": 4, "node2": 2}),
        (recorded("gpus_heterogeneous"), 8, {"node1": 4, "node2": 2}),
        (line(("n[9-11]", "gpu:2(IDX:0-1)")), 9, {"n9": 2, "n10": 2, "n11": 2}),
        (line(("n9", "gpu:a100:2(IDX:0,2)")), 9, {"n9": 2}),
        (line(("n9", "gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:3),nic:1")), 9, {"n9": 3}),
        (line(("n9", "nic:4,shard:gpu:8")), 9, {"n9": 0}),
        (line(("n9", "gpu:16")), 9, {"n9": 16}),
        (line(("n9", "")), 9, {"n9": 0}),
        (line(("n9", "gpu:1")) + line(("n9", "gpu:2"), job_id=10), 9, {"n9": 1}),
        (
            line(("n9", "gpu:1"), before="HetJobId=9 ")
            + line(("n9", "gpu:2"), job_id=10, before="HetJobId=9 "),
            9,
            {"n9": 3},
        ),
    ],
)
def test_gpus_of_each_node(text, job_id, numbers):
    assert gpus_by_node(text, job_id) == numbers


def test_nodes_that_are_alike_are_listed_together():
    assert set(gpus_by_node(recorded("gpus_same_on_all"), 10).values()) == {2}
    assert "Nodes=node[1-2]" in recorded("gpus_same_on_all")


@pytest.mark.parametrize("text", ["", line(), line(("n9", "gpu:1"), job_id=99)])
def test_an_answer_without_nodes_is_an_error(text):
    with pytest.raises(SlurmError, match="nothing about the nodes of job 9"):
        gpus_by_node(text, 9)


@pytest.mark.parametrize(
    ("on_node", "tasks_here", "most_tasks", "divided", "count"),
    [
        (4, 1, 1, True, 4),
        (0, 1, 1, True, 0),
        (4, 2, 2, True, 2),
        (4, 1, 2, True, 2),
        (2, 2, 2, True, 1),
        (3, 2, 2, True, 1),
        (1, 2, 2, True, 1),
        (4, 2, 2, False, 4),
    ],
)
@pytest.mark.parametrize(
    "own",
    [{}, {"gpus_bound": True}, {"gpus_per_task": 4}, {"gpu_lists": (("ROCR_VISIBLE_DEVICES", "7"),)}],
    ids=str,
)
def test_a_nodes_gpus_are_divided_among_its_tasks(on_node, tasks_here, most_tasks, divided, count, own):
    node = TaskNode(local_rank=0, tasks_here=tasks_here, most_tasks=most_tasks)
    assert gpus_of_task(dataclasses.replace(JOB, **own), node, on_node, divided=divided) == count


class Scontrol:
    """Stands for the command, which it finds with `sh`; counts how often it is asked."""

    def __init__(self, said="", returncode=0):
        self.said, self.returncode = said, returncode
        self.asked = []

    def __call__(self, command, **options):
        self.asked.append(command[4:])
        return subprocess.CompletedProcess(command, self.returncode, self.said, "Invalid job id specified")

    def control(self, tmp_path):
        program = tmp_path / "scontrol"
        program.touch()
        program.chmod(0o755)
        return SlurmControl({"PATH": str(tmp_path)}, run=self)


def test_the_controller_is_asked_once(tmp_path, caplog):
    caplog.set_level("INFO")
    scontrol = Scontrol(recorded("gpus"))
    gpus = GpusOfNodes(scontrol.control(tmp_path))
    assert scontrol.asked == []
    assert [gpus.on(node, JOB, "node1") for node in ("node2", "node1", "node2", "node3")] == [2, 4, 2, None]
    assert scontrol.asked == [["show", "job", "-d", "-o", "9"]]
    assert not caplog.records


@pytest.mark.parametrize(
    ("said", "returncode", "on_node", "words"),
    [
        ("", 1, 4, "left with 1: Invalid job id specified"),
        ("", 0, 4, "tells nothing about the nodes of job 9"),
        (recorded("gpus"), 0, 2, "job 9 has 4 on node1, but this step 2."),
        (recorded("gpus"), 0, None, "job 9 has 4 on node1, but this step 0."),
        (line(("n9", "gpu:4")), 0, 4, "job 9 has None on node1, but this step 4."),
    ],
    ids=["refuses", "nothing", "part of the job's", "none of the job's", "other nodes"],
)
def test_what_is_not_known_is_said_once(tmp_path, caplog, said, returncode, on_node, words):
    caplog.set_level("INFO")
    scontrol = Scontrol(said, returncode)
    gpus = GpusOfNodes(scontrol.control(tmp_path))
    job = dataclasses.replace(JOB, gpus_on_node=on_node)
    assert [gpus.on("node2", job, "node1") for _ in range(3)] == [None] * 3
    assert len(scontrol.asked) == 1
    (message,) = caplog.messages
    assert message.startswith("How many GPUs other nodes have is not known, and taken to be as here: ")
    assert words in message
