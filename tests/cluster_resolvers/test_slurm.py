"""The Slurm resolver, on the environments of real jobs and on changed ones."""

import json
import subprocess
from pathlib import Path

import pytest
import tensorflow as tf

from tf_preempt import strategies
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.cluster_resolvers import SlurmClusterResolver
from tf_preempt.errors import ClusterConfigError, ConfigError, SlurmError, UnsupportedStrategyError

RECORDED = Path(__file__).parents[1] / "data" / "slurm_env"
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "n[9-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_DISTRIBUTION": "block",
    "SLURMD_NODENAME": "n10",
}


def steps(name):
    """The tasks of each step of a recorded job, in the order of their ranks."""
    tasks = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))["tasks"]
    found = {}
    for environ in tasks.values():
        if "SLURM_STEP_ID" in environ:
            found.setdefault((environ["SLURM_JOB_ID"], environ["SLURM_STEP_ID"]), []).append(environ)
    return [sorted(step, key=lambda environ: int(environ["SLURM_PROCID"])) for step in found.values()]


def outside_steps():
    return [
        pytest.param(environ, id=f"{path.stem}-{name}")
        for path in sorted(RECORDED.glob("*.json"))
        for name, environ in json.loads(path.read_text(encoding="utf-8"))["tasks"].items()
        if "SLURM_STEP_ID" not in environ
    ]


NAMES = sorted(path.stem for path in RECORDED.glob("*.json"))
WITH_STEPS = [name for name in NAMES if steps(name)]


def tasks_of_steps():
    """Each recorded task, and where all tasks of its step ran by what Slurm told each of them."""
    return [
        pytest.param(
            environ, [(told["SLURMD_NODENAME"], int(told["SLURM_LOCALID"])) for told in step], id=label
        )
        for name in NAMES
        for number, step in enumerate(steps(name))
        for environ in step
        if (label := f"{name}-{number}-{environ['SLURM_PROCID']}")
    ]


@pytest.fixture
def seen_by_all_nodes(tmp_path):
    """Puts the host file of the recorded job where the tasks look for it."""
    path = tmp_path / "hosts"
    path.write_text("node3\nnode1\nnode3\nnode2\n", encoding="utf-8")

    def place(environ):
        return {**environ, "SLURM_HOSTFILE": str(path)} if "SLURM_HOSTFILE" in environ else dict(environ)

    return place


def test_every_recorded_process_is_in_one_of_the_tests():
    recorded = [json.loads(path.read_text(encoding="utf-8"))["tasks"] for path in RECORDED.glob("*.json")]
    assert len(recorded) == 31
    assert len(tasks_of_steps()) + len(outside_steps()) == sum(map(len, recorded)) == 127


@pytest.mark.parametrize(("environ", "placed"), tasks_of_steps())
def test_each_task_of_a_real_job_has_the_addresses_of_all(environ, placed, seen_by_all_nodes):
    rank, environ = int(environ["SLURM_PROCID"]), seen_by_all_nodes(environ)
    resolver = SlurmClusterResolver(port_base=9000, environ=environ, control=Controller().control)
    addresses = [f"{node}:{9000 + local_rank}" for node, local_rank in placed]
    assert resolver.cluster_spec().as_dict() == {"worker": addresses}
    assert resolver.get_task_info() == ("worker", rank)
    assert resolver.master() == f"grpc://{addresses[rank]}"
    ranks_here = [other for other, (node, _) in enumerate(placed) if node == environ["SLURMD_NODENAME"]]
    assert ranks_here[int(environ["SLURM_LOCALID"])] == rank


@pytest.mark.parametrize("name", WITH_STEPS)
def test_the_tasks_of_a_real_job_agree_on_different_addresses(name, seen_by_all_nodes):
    for step in steps(name):
        clusters = [
            SlurmClusterResolver(environ=seen_by_all_nodes(told), control=Controller().control).cluster_spec()
            for told in step
        ]
        (addresses,) = clusters[0].as_dict().values()
        assert [cluster.as_dict() for cluster in clusters] == [{"worker": addresses}] * len(step)
        assert len({address.split(":")[1] for address in addresses}) == len(step)
        assert len(step) == int(step[0]["SLURM_STEP_NUM_TASKS"])


def test_without_its_host_file_an_arbitrary_distribution_is_refused_by_every_task():
    (step,) = steps("arbitrary")
    for environ in step:
        with pytest.raises(SlurmError, match="SLURM_HOSTFILE='/home/user/run/hosts' cannot be read on node"):
            SlurmClusterResolver(environ=dict(environ))
        without = {name: value for name, value in environ.items() if name != "SLURM_HOSTFILE"}
        with pytest.raises(SlurmError, match="'arbitrary' on 3 nodes, and SLURM_HOSTFILE is not set"):
            SlurmClusterResolver(environ=without)


def test_a_host_file_is_read_once(seen_by_all_nodes):
    environ = seen_by_all_nodes(steps("arbitrary")[0][1])
    resolver = SlurmClusterResolver(environ=environ)
    before = resolver.cluster_spec().as_dict()
    Path(environ["SLURM_HOSTFILE"]).unlink()
    assert resolver.cluster_spec().as_dict() == before


@pytest.mark.parametrize("environ", outside_steps())
def test_outside_of_srun_one_task_is_a_cluster_of_one_and_several_are_an_error(environ):
    ntasks = int(environ.get("SLURM_NTASKS", environ["SLURM_NNODES"]))
    if ntasks == 1:
        before = dict(environ)
        alone = SlurmClusterResolver(environ=environ)
        (address,) = alone.cluster_spec().as_dict()["worker"]
        assert address.split(":")[0] == environ["SLURMD_NODENAME"]
        assert alone.get_task_info() == ("worker", 0)
        assert environ == before
        return
    with pytest.raises(SlurmError, match=f"is for {ntasks} tasks.*do not exist") as caught:
        SlurmClusterResolver(environ=dict(environ))
    assert "Start the program with srun" in caught.value.hint


def test_an_interactive_shell_on_a_login_node_is_localhost():
    alone = SlurmClusterResolver(environ={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_NODELIST": "n1"})
    assert alone.cluster_spec().as_dict()["worker"][0].startswith("localhost:")


def test_no_slurm_job_is_an_error():
    with pytest.raises(SlurmError, match="SLURM_JOB_ID is not set"):
        SlurmClusterResolver(environ={})


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("gpus_per_node", ["0", "1", "0", "1"]),
        ("gres_gpu2", ["0", "1", "0", "1"]),
        ("gpus_per_task", ["0", "1", "0", "1"]),
        ("gpus_per_node_bind_single", ["0", "1", "0", "1"]),
        ("gpus_per_node_1task", ["0,1", "0,1"]),
        ("gres_gpu1", ["0", "0"]),
        ("n2_x2", [None] * 4),
    ],
)
def test_gpus_of_real_jobs(name, devices):
    (step,) = steps(name)
    for variable in (
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
    ):
        environs = [dict(environ) for environ in step]
        for environ in environs:
            SlurmClusterResolver(environ=environ)
        assert [environ.get(variable) for environ in environs] == devices


def test_the_controller_is_asked_for_the_components_when_the_resolver_is_built_and_not_again():
    (first, *_), slurm = steps("het")[0], Controller(node1=0)
    resolver = SlurmClusterResolver(environ=dict(first), control=slurm.control)
    asked = slurm.questions
    assert asked
    for _ in range(2):
        assert resolver.cluster_spec().num_tasks("worker") == 5
    assert slurm.questions == asked


@pytest.mark.parametrize("name", WITH_STEPS)
def test_any_number_of_resolvers_and_calls_leave_the_same_environment(name, seen_by_all_nodes):
    for environ in map(seen_by_all_nodes, steps(name)[0]):
        first = SlurmClusterResolver(environ=environ, control=Controller().control)
        after, cluster = dict(environ), first.cluster_spec().as_dict()
        for _ in range(2):
            again = SlurmClusterResolver(environ=environ, control=Controller().control)
            assert again.cluster_spec().as_dict() == first.cluster_spec().as_dict() == cluster
            assert again.get_task_info() == first.get_task_info()
        assert environ == after


@pytest.mark.parametrize("visible", ["4,5,6,7", "GPU-a,GPU-b,GPU-c,GPU-d"])
def test_a_list_is_divided_once_also_where_slurm_manages_no_gpus(visible):
    environ = {**STEP, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "CUDA_VISIBLE_DEVICES": visible}
    for _ in range(3):
        SlurmClusterResolver(environ=environ)
        assert environ["CUDA_VISIBLE_DEVICES"] == ",".join(visible.split(",")[2:])


def test_a_new_step_that_inherits_the_mark_of_another_divides_its_own_list():
    environ = {
        **STEP,
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TF_PREEMPT_OWN_GPUS": "7.0.0:CUDA_VISIBLE_DEVICES=0,1",
    }
    SlurmClusterResolver(environ=environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_environment_is_left_alone_on_request():
    environ = {**STEP, "CUDA_VISIBLE_DEVICES": "0,1"}
    SlurmClusterResolver(environ=environ, auto_set_gpu=False)
    assert environ == {**STEP, "CUDA_VISIBLE_DEVICES": "0,1"}


def test_the_division_of_gpus_is_logged_once(caplog):
    environ = {**STEP, "CUDA_VISIBLE_DEVICES": "0,1"}
    with caplog.at_level("INFO", logger="tf_preempt"):
        SlurmClusterResolver(environ=environ)
        SlurmClusterResolver(environ=environ)
    assert [record.getMessage() for record in caplog.records] == [
        "GPUs of rank 2 (local rank 0 on n10): CUDA_VISIBLE_DEVICES=0, its share of CUDA_VISIBLE_DEVICES=0,1"
    ]


def test_fewer_gpus_than_tasks_are_one_warning(caplog):
    environ = {**STEP, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "1"}
    for _ in range(2):
        SlurmClusterResolver(environ=environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "0"
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        "n10 has fewer GPUs than tasks: each task sees and takes all of CUDA_VISIBLE_DEV"
    )


def test_no_other_program_is_asked(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError(arguments)

    monkeypatch.setattr("subprocess.Popen.__init__", refuse)
    monkeypatch.setattr("os.system", refuse)
    for environ in (STEP, {**STEP, "CUDA_VISIBLE_DEVICES": "0,1"}):
        resolver = SlurmClusterResolver(environ=dict(environ))
        assert resolver.cluster_spec().num_tasks("worker") == 4
        assert resolver.num_accelerators() == {}


def sees_gpus(monkeypatch, count):
    """Has TensorFlow see so many GPUs; there need not be any."""
    monkeypatch.setattr(
        tf.config, "get_visible_devices", lambda kind: [kind] * count if kind == "GPU" else []
    )


class Controller:
    """A controller that says how many GPUs the job has on each node, or is out of reach."""

    def __init__(self, **gpus):
        nodes = "".join(
            f"   Nodes={node} CPU_IDs=0 Mem=0 GRES=gpu:{count}(IDX:0)" for node, count in gpus.items()
        )
        self._said = f"JobId=7 JobName=x UserId=ada(1) JobState=RUNNING{nodes}\n"
        self._is_up = bool(gpus)
        self.questions = 0
        self.control = SlurmControl({}, run=self._run)

    def _run(self, command, **options):
        self.questions += 1
        if not self._is_up:
            raise OSError("no scontrol")
        return subprocess.CompletedProcess(command, 0, self._said, "")


UNEVEN = {
    **STEP,
    "SLURM_PROCID": "0",
    "SLURM_NODEID": "0",
    "SLURMD_NODENAME": "n9",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    "SLURM_GPUS_ON_NODE": "4",
}


@pytest.mark.parametrize(
    ("arguments", "seen", "count"),
    [
        ({}, 2, 2),
        ({}, 0, 0),
        ({"gpus_per_task": 1}, 1, 1),
        ({"gpus_per_task": 0}, 4, 0),
        ({"gpus_per_node": 2}, 1, 1),
        ({"gpus_per_node": 0}, 4, 0),
        ({"auto_set_gpu": False}, 4, 4),
    ],
)
@pytest.mark.parametrize("task", [(), ("worker", 0), ("worker", 2), (None, 1)])
def test_all_tasks_have_as_many_gpus(arguments, seen, count, task, monkeypatch):
    sees_gpus(monkeypatch, seen)
    resolver = SlurmClusterResolver(**arguments, environ=dict(UNEVEN), control=Controller().control)
    assert resolver.num_accelerators(*task) == ({"GPU": count} if count else {})


@pytest.mark.parametrize(("rank", "own"), [(0, "0,1"), (1, "2,3"), (2, "0,1")])
def test_uneven_tasks_get_the_same_number_of_gpus_each(rank, own):
    place = {"SLURM_NODEID": str(rank // 2), "SLURMD_NODENAME": ("n9", "n9", "n10")[rank]}
    environ = {**UNEVEN, **place, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2)}
    SlurmClusterResolver(environ=environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == own


def test_gpus_of_another_component_are_taken_to_be_as_here_with_one_warning(monkeypatch, caplog):
    sees_gpus(monkeypatch, 2)
    groups = {f"SLURM_JOB_NODELIST_HET_GROUP_{group}": node for group, node in enumerate(("n9", "n10"))}
    environ = {**UNEVEN, **groups, "SLURM_HET_SIZE": "2"}
    resolver = SlurmClusterResolver(environ=environ, control=Controller().control)
    for _ in range(2):
        assert [resolver.num_accelerators("worker", index) for index in range(3)] == [{"GPU": 2}] * 3
    assert [record.getMessage().split(", although")[0] for record in caplog.records] == [
        "Rank 2 is taken to have as many GPUs as rank 0"
    ]


@pytest.mark.parametrize(
    ("arguments", "change", "counts"),
    [
        ({}, {}, [2, 2, 1]),
        ({"auto_set_gpu": False}, {}, [2, 2, 2]),
        ({}, {"SLURM_STEP_TASKS_PER_NODE": "1,2"}, [2, 1, 1]),
        ({"jobs": {"chief": 1, "worker": 2}}, {}, [2, 2, 1]),
    ],
)
def test_a_task_on_a_node_with_other_gpus_has_its_share_of_those(monkeypatch, arguments, change, counts):
    sees_gpus(monkeypatch, 2)
    slurm = Controller(n9=4, n10=2)
    resolver = SlurmClusterResolver(**arguments, environ={**UNEVEN, **change}, control=slurm.control)
    assert slurm.questions == 0
    names = [("chief", 0), ("worker", 0), ("worker", 1)] if arguments.get("jobs") else None
    tasks = names or [("worker", index) for index in range(3)]
    for _ in range(2):
        assert [resolver.num_accelerators(*task) for task in tasks] == [{"GPU": count} for count in counts]
    assert slurm.questions == 1


def test_a_task_on_a_node_without_gpus_has_none(monkeypatch):
    sees_gpus(monkeypatch, 2)
    groups = {f"SLURM_JOB_NODELIST_HET_GROUP_{group}": node for group, node in enumerate(("n9", "n10"))}
    environ = {**UNEVEN, **groups, "SLURM_HET_SIZE": "2"}
    resolver = SlurmClusterResolver(environ=environ, control=Controller(n9=4, n10=0).control)
    assert resolver.num_accelerators("worker", 2) == {}


def test_a_task_without_gpus_knows_those_of_another_component(monkeypatch, caplog):
    sees_gpus(monkeypatch, 0)
    groups = {f"SLURM_JOB_NODELIST_HET_GROUP_{group}": node for group, node in enumerate(("n9", "n10"))}
    environ = {**UNEVEN, **groups, "SLURM_HET_SIZE": "2"}
    del environ["CUDA_VISIBLE_DEVICES"], environ["SLURM_GPUS_ON_NODE"]
    resolver = SlurmClusterResolver(environ=environ, control=Controller(n9=0, n10=4).control)
    assert [resolver.num_accelerators("worker", index) for index in range(3)] == [{}, {}, {"GPU": 4}]
    assert not caplog.records


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        ({"gpus_per_task": 2}, {}),
        ({"gpus_per_node": 4}, {}),
        ({}, {"SLURMD_TRES_BIND": "gpu:per_task:2", "CUDA_VISIBLE_DEVICES": "0,1"}),
        ({}, {"SLURM_GPUS_PER_TASK": "2", "CUDA_VISIBLE_DEVICES": "0,1"}),
        ({}, {"SLURM_GPUS_ON_NODE": None}),
    ],
)
def test_nobody_is_asked_where_all_tasks_have_the_same_number(monkeypatch, arguments, change):
    sees_gpus(monkeypatch, 2)
    slurm = Controller(n9=4, n10=2)
    environ = {name: value for name, value in {**UNEVEN, **change}.items() if value is not None}
    resolver = SlurmClusterResolver(**arguments, environ=environ, control=slurm.control)
    assert [resolver.num_accelerators("worker", index) for index in range(3)] == [{"GPU": 2}] * 3
    assert slurm.questions == 0


def test_gpus_of_a_task_that_is_not_there_are_an_error():
    with pytest.raises(
        ClusterConfigError, match=r"no task 'worker' 4; it has these numbers of tasks: \{'worker': 4\}"
    ):
        SlurmClusterResolver(environ=dict(STEP)).num_accelerators("worker", 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gpus_per_node": 4}, "gpus_per_node=4 is more than SLURM_GPUS_ON_NODE=2"),
        ({"gpus_per_task": 2}, "gpus_per_task=2 for up to 2 tasks"),
        ({"jobs": {"worker": 5}}, "requests 5 tasks, but 4 were assigned"),
        ({"jobs": {"worker": 3}}, "requests 3 tasks, but 4 were assigned"),
        ({"tasks_per_node": 1}, r"tasks_per_node=1 does not match what Slurm started: \[2, 2\]"),
        ({"tasks_per_node": {"n9": 3, "n10": 1}}, "does not match what Slurm started"),
        ({"tasks_per_node": {"n9": 4}}, r"tasks_per_node is for the nodes \['n9'\]"),
    ],
)
def test_asking_for_what_slurm_did_not_give_is_a_runtime_error(arguments, words):
    with pytest.raises(RuntimeError, match=words) as caught:
        SlurmClusterResolver(**arguments, environ={**STEP, "SLURM_GPUS_ON_NODE": "2"})
    assert isinstance(caught.value, SlurmError)
    assert caught.value.hint


@pytest.mark.parametrize(
    "arguments",
    [
        {"jobs": {"worker": -1}},
        {"jobs": {"worker": 4.0}},
        {"jobs": {"chief": 2, "worker": 2}},
        {"tasks_per_node": 0},
        {"tasks_per_node": "2"},
        {"gpus_per_task": -1},
        {"port_base": 0},
    ],
)
def test_arguments_of_no_use_are_config_errors(arguments):
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        SlurmClusterResolver(**arguments, environ=dict(STEP))


def test_arguments_are_in_tensorflows_order():
    resolver = SlurmClusterResolver({"worker": 4}, 8888, 2, 1, 2, False, "grpc+verbs", environ=dict(STEP))
    assert resolver.cluster_spec().as_dict() == {"worker": ["n9:8888", "n9:8889", "n10:8888", "n10:8889"]}
    assert resolver.master() == "grpc+verbs://n10:8888"
    assert resolver.num_accelerators() == {"GPU": 1}


@pytest.mark.parametrize("tasks_per_node", [2, {"n10": 2, "n9": 2}])
def test_tasks_per_node_can_stand_in_for_slurms(tasks_per_node):
    environ = {name: value for name, value in STEP.items() if name != "SLURM_STEP_TASKS_PER_NODE"}
    resolver = SlurmClusterResolver(port_base=80, tasks_per_node=tasks_per_node, environ=environ)
    assert resolver.cluster_spec().as_dict() == {"worker": ["n9:80", "n9:81", "n10:80", "n10:81"]}


@pytest.mark.parametrize(
    ("jobs", "tasks"),
    [
        ({"chief": 1, "worker": 3}, [("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2)]),
        ({"worker": 3, "chief": 1}, [("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2)]),
        ({"worker": 3, "evaluator": 1}, [("worker", 0), ("worker", 1), ("worker", 2), ("evaluator", 0)]),
        ({"ps": 1, "worker": 3}, [("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)]),
        ({"worker": 4, "ps": 0}, [("worker", 0), ("worker", 1), ("worker", 2), ("worker", 3)]),
    ],
)
def test_ranks_are_given_to_the_chief_first_and_then_in_the_order_given(jobs, tasks):
    told = {"SLURM_NODEID", "SLURM_LOCALID", "SLURMD_NODENAME"}
    base = {name: value for name, value in STEP.items() if name not in told}
    resolvers = [SlurmClusterResolver(jobs, environ={**base, "SLURM_PROCID": str(rank)}) for rank in range(4)]
    assert [resolver.get_task_info() for resolver in resolvers] == tasks
    assert {resolver.cluster_spec().num_tasks("worker") for resolver in resolvers} == {jobs["worker"]}
    assert {len(resolver.cluster_spec().jobs) for resolver in resolvers} == {len(dict(tasks))}
    hosts = [resolver.master().split("/")[-1].split(":")[0] for resolver in resolvers]
    assert hosts == ["n9", "n9", "n10", "n10"]


def test_master_takes_each_override_by_itself():
    resolver = SlurmClusterResolver({"chief": 1, "worker": 3}, 80, environ=dict(STEP))
    assert resolver.get_task_info() == ("worker", 1)
    assert resolver.master() == "grpc://n10:80"
    assert resolver.master(task_id=2) == "grpc://n10:81"
    assert resolver.master("chief", 0) == "grpc://n9:80"
    assert resolver.master(rpc_layer="grpc+verbs") == "grpc+verbs://n10:80"
    resolver.task_id = 0
    assert resolver.master(task_type="chief") == "grpc://n9:80"


def test_a_cluster_with_parameter_servers_resolves_and_is_refused_by_the_strategies():
    resolver = SlurmClusterResolver({"worker": 3, "ps": 1}, environ=dict(STEP))
    assert resolver.cluster_spec().num_tasks("ps") == 1
    with pytest.raises(UnsupportedStrategyError, match=r"parameter servers.*'ps': 1 tasks"):
        strategies.auto(resolver)


def test_a_job_without_gpus_has_no_accelerators():
    assert SlurmClusterResolver(gpus_per_node=0, gpus_per_task=0, environ=dict(STEP)).num_accelerators() == {}


def test_the_cluster_is_resolved_anew_at_each_call():
    environ = dict(STEP)
    resolver = SlurmClusterResolver(port_base=80, environ=environ)
    environ["SLURM_STEP_NODELIST"] = "n[8,10]"
    assert resolver.cluster_spec().as_dict()["worker"][0] == "n8:80"


@pytest.mark.parametrize(
    ("environ", "arguments", "clients", "lines"),
    [
        ({}, {}, range(1024, 65_536), 1),
        ({}, {}, range(32_768, 61_000), 0),
        ({}, {"port_base": 40_000}, range(32_768, 61_000), 0),
        ({"SLURM_STEP_RESV_PORTS": "40000-40003"}, {}, range(32_768, 61_000), 0),
    ],
)
def test_a_derived_port_that_clients_may_hold_is_reported(environ, arguments, clients, lines, caplog):
    with caplog.at_level("INFO", logger="tf_preempt"):
        SlurmClusterResolver(**arguments, environ={**STEP, **environ}, host_ports=lambda: clients)
    assert len(caplog.records) == lines
    assert all("(1024 to 65535)" in record.getMessage() for record in caplog.records)


def test_a_batch_script_that_inherits_the_step_in_which_it_was_submitted_is_no_task():
    script = {
        **STEP,
        "SLURM_PROCID": "0",
        "SLURMD_NODENAME": "n1",
        "SLURM_NTASKS": "1",
        "SLURM_NODELIST": "n1",
    }
    (address,) = SlurmClusterResolver(environ=script).cluster_spec().as_dict()["worker"]
    assert address.startswith("n1:")
    with pytest.raises(SlurmError, match="srun did not start this process"):
        SlurmClusterResolver(environ={**script, "SLURM_NTASKS": "2"})
