"""All checks of a task together, without Slurm and without TensorFlow."""

import concurrent.futures
import contextlib
import json
import os
import socket

import pytest

from tf_preempt._slurm_control import JobRecord
from tf_preempt._version import __version__
from tf_preempt.cli.doctor.examination import Examination
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.meeting import meet
from tf_preempt.cli.doctor.place import find_place
from tf_preempt.cli.doctor.versions import installed_versions
from tf_preempt.errors import SlurmError
from tf_preempt.goodput.events import EventLog
from tf_preempt.termination.auto import Platform, detect_platform

CONFIG = "PreemptType = preempt/partition_prio\nPreemptMode = REQUEUE\nKillWait = 5 sec\n"


class Control:
    """A controller of a cluster whose partition has a grace of so many seconds."""

    def __init__(self, grace_s, *, is_batch=True):
        self.asked = 0
        self._grace_s = grace_s
        self._is_batch = is_batch

    def has(self, command):
        return True

    def job(self, job_id):
        self.asked += 1
        return JobRecord(
            state="RUNNING", is_batch=self._is_batch, may_requeue=True, partition="low", limit_s=3600.0
        )

    def ask(self, command, verb, what, *names):
        answers = {
            "config": CONFIG,
            "partition": f"PartitionName=low GraceTime={self._grace_s} PreemptMode=REQUEUE",
            "batch_script": "#!/bin/sh\n#SBATCH --signal=TERM@120 --open-mode=append\n",
        }
        return answers[what]


class Controller:
    """The controller as a login node sees it, where ``scontrol`` is installed or not."""

    def __init__(self, said, *, installed=True):
        self._said, self._installed = said, installed

    def has(self, command):
        return self._installed

    def ask(self, *words):
        assert self._installed
        assert words == ("scontrol", "ping")
        if isinstance(self._said, SlurmError):
            raise self._said
        return self._said


class NoControl:
    def has(self, command):
        return False

    def job(self, job_id):
        raise SlurmError("scontrol is not installed here.", hint="bind it")


def examine(environ, **options):
    return make_report(environ, **options).findings


def make_report(
    environ, *, directory=None, control=None, timeout_s=20.0, platform=None, size_mb=1, tells_all=False
):
    platform = platform or detect_platform(environ, dmi_product_name=str)
    return Examination(
        find_place(environ, platform),
        environ,
        directory=None if directory is None else str(directory),
        size_mb=size_mb,
        timeout_s=timeout_s,
        host="h",
        tells_all=tells_all,
        control=control or NoControl(),
    ).make()


def by_name(findings):
    return {finding.name: finding for finding in findings}


def statuses(findings):
    return {finding.name: str(finding.status) for finding in findings}


def workers(count):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in held]
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            )
        }
        for index in range(count)
    ]


def examine_all(environs, directories, **options):
    with concurrent.futures.ThreadPoolExecutor(len(environs)) as pool:
        pairs = zip(environs, directories, strict=True)
        reports = list(pool.map(lambda pair: make_report(pair[0], directory=pair[1], **options), pairs))
    return reports if options else [report.findings for report in reports]


def test_a_laptop_is_told_that_there_is_nothing_to_reach():
    found = statuses(examine({}))
    assert found == {
        "versions": "ok",
        "platform": "info",
        "cluster": "ok",
        "task": "info",
        "gpus": "info",
        "peers": "info",
        "directory": "info",
    }


def test_a_directory_is_tried_and_left_as_it_was(tmp_path):
    found = statuses(examine({}, directory=tmp_path / "a" / "b"))
    assert [found[name] for name in ("directory", "writable", "speed", "saves")] == [
        "info",
        "warning",
        "ok",
        "info",
    ]
    assert os.listdir(tmp_path) == []


def test_all_workers_see_one_directory_and_leave_nothing_in_it(tmp_path):
    first, *others = examine_all(workers(3), [tmp_path / "new"] * 3)
    assert by_name(first)["shared"].message.startswith("all 3 tasks see what the first one writes to")
    assert by_name(first)["writable"].values["existed"] is False
    assert all({"writable": "ok"}.items() <= statuses(findings).items() for findings in others)
    for findings in (first, *others):
        assert {"peers": "ok", "shared": "ok"}.items() <= statuses(findings).items()
    assert ["speed" in statuses(findings) for findings in (first, *others)] == [True, False, False]
    assert os.listdir(tmp_path) == []


def test_workers_with_different_directories_are_told_so(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = examine_all(workers(2), [tmp_path / "a", tmp_path / "b"])
    assert by_name(first)["shared"].status is Status.ERROR
    assert "worker 1 on 127.0.0.1 do(es) not see" in by_name(first)["shared"].message
    assert by_name(second)["shared"].status is Status.ERROR
    assert [os.listdir(tmp_path / name) for name in "ab"] == [[], []]


def test_the_first_is_told_what_is_wrong_with_the_others(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = examine_all(workers(2), [tmp_path / "a", tmp_path / "b"], tells_all=False)
    assert first.others == {1: [by_name(second.findings)["shared"]]}
    assert (first.is_sent, second.is_sent, second.others) == (False, True, {})


def test_the_first_is_told_everything_if_asked_to(tmp_path):
    first, second, third = examine_all(workers(3), [tmp_path] * 3, tells_all=True)
    assert first.others == {1: list(second.findings), 2: list(third.findings)}


def test_what_the_first_is_not_told_is_not_taken_for_sent():
    report = make_report(workers(2)[1], timeout_s=0.2)
    assert (report.is_sent, by_name(report.findings)["peers"].status) == (False, Status.ERROR)


def test_another_version_of_this_package_on_another_host_is_an_error():
    environs = workers(2)
    members = find_place(environs[1], Platform.LOCAL).members
    greeting = {"host": "h", "versions": {**installed_versions(), "tf_preempt": "0.0.1"}, "proof": None}
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        second = pool.submit(meet, members, 1, greeting, timeout_s=20.0, report=lambda outcome: {})
        first = examine(environs[0])
        second.result(20)
    trouble = [finding.message for finding in first if finding.status is Status.ERROR]
    assert trouble == [f"This task has tf_preempt {__version__}, but worker 1 ({members[1].address}): 0.0.1."]


def test_a_worker_without_a_directory_is_not_known_to_share_it(tmp_path):
    first, second = examine_all(workers(2), [tmp_path, None])
    assert by_name(first)["shared"].status is Status.WARNING
    assert by_name(second)["shared"].status is Status.INFO


def test_a_directory_that_the_first_cannot_write_to_is_told_once(tmp_path):
    (tmp_path / "file").touch()
    first, second = examine_all(workers(2), [tmp_path / "file" / "x"] * 2)
    assert [finding.name for finding in first if finding.status.is_trouble] == ["writable"]
    assert not {"shared", "speed", "saves"} & set(statuses(first))
    assert by_name(second)["shared"].message.startswith("not checked, as the first task told of no directory")


def test_a_worker_that_does_not_come_is_an_error(tmp_path):
    found = by_name(examine(workers(2)[0], directory=tmp_path, timeout_s=0.3))
    assert found["peers"].status is Status.ERROR
    assert found["shared"].status is Status.WARNING
    assert os.listdir(tmp_path) == []


def test_files_are_removed_when_something_is_interrupted(tmp_path, monkeypatch):
    def interrupt(directory, size_mb):
        assert os.listdir(directory)
        raise KeyboardInterrupt

    monkeypatch.setattr("tf_preempt.cli.doctor.directory.measure_speed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        examine({}, directory=tmp_path / "new")
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_full_is_an_error_with_the_cure(tmp_path, monkeypatch):
    def fail(directory, size_mb):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tf_preempt.cli.doctor.directory.measure_speed", fail)
    found = by_name(examine({}, directory=tmp_path))["speed"]
    assert (found.status, found.hint) == (Status.ERROR, "free some space, or choose another directory")


def save_took(directory, seconds):
    with EventLog(str(directory), incarnation=0, worker=0) as events:
        events.write("commit", checkpoint="ckpt-1", seconds=seconds)


STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NODELIST": "localhost",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}


@pytest.mark.parametrize(
    ("grace_s", "seconds", "status"), [(60, 3.0, "ok"), (5, 8.0, "warning"), (5, 10.5, "error")]
)
def test_a_save_is_compared_with_the_grace_of_slurm(tmp_path, grace_s, seconds, status):
    save_took(tmp_path, seconds)
    control = Control(grace_s)
    found = by_name(examine(STEP, directory=tmp_path, control=control))
    assert str(found["saves"].status) == status
    assert f"GraceTime {grace_s} s + KillWait 5 s" in found["saves"].message
    assert control.asked == 1


@pytest.mark.parametrize(
    ("environ", "is_told"), [(STEP, True), ({**STEP, "TF_PREEMPT_STATUS_FILE": "/tmp/status"}, False)]
)
def test_a_job_whose_start_no_supervisor_sees_to_is_told_of_it(environ, is_told):
    assert ("start" in statuses(examine(environ, control=Control(60)))) is is_told


def test_an_interactive_job_is_told_the_command_with_the_directory_that_was_given(tmp_path):
    found = by_name(examine(STEP, directory=tmp_path, control=Control(60, is_batch=False)))
    assert f"`exec srun tf-preempt doctor {tmp_path}`" in found["requeue"].hint


def test_only_the_first_task_asks_the_controller():
    environ = {**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    control = Control(5)
    assert "preemption" not in statuses(examine(environ, control=control, timeout_s=0.1))
    assert control.asked == 0


def test_a_container_without_scontrol_is_warned_of():
    found = by_name(examine(STEP))
    assert (found["slurm"].status, found["slurm"].hint) == (Status.WARNING, "bind it")
    assert found["step"].status is Status.OK


UP = "Slurmctld(primary) at head is UP\n"


def test_a_login_node_is_told_that_the_doctor_belongs_into_the_batch_script(tmp_path):
    found = by_name(examine({}, directory=tmp_path, control=Controller(UP)))
    assert (found["slurm"].status, found["cluster"].status) == (Status.INFO, Status.OK)
    assert f"exec srun tf-preempt doctor {tmp_path}`" in found["slurm"].hint


@pytest.mark.parametrize(
    "control",
    [
        Controller(UP, installed=False),
        Controller("Slurmctld(primary) at head is DOWN\n"),
        Controller(SlurmError("`scontrol ping` did not answer within 10 s.")),
    ],
    ids=["not installed", "down", "silent"],
)
def test_where_slurm_does_not_answer_nothing_is_said_of_it(control):
    assert "slurm" not in statuses(examine({}, control=control))


@pytest.mark.parametrize("platform", [Platform.GCE, Platform.KUBERNETES])
def test_platforms_with_a_usual_notice_are_compared_with_it(tmp_path, platform):
    save_took(tmp_path, 31.0)
    found = by_name(examine({}, directory=tmp_path, platform=platform))
    assert found["saves"].status is Status.ERROR
    assert found["saves"].values["notice_s"] == 30.0


def test_wrong_variables_of_slurm_are_one_error_and_the_rest_is_checked(tmp_path):
    found = examine({"SLURM_JOB_ID": "many"}, directory=tmp_path)
    assert [finding.name for finding in found if finding.status is Status.ERROR] == ["cluster"]
    assert by_name(found)["peers"].message == "not checked, as the cluster is not known"
    assert by_name(found)["writable"].status is Status.OK
