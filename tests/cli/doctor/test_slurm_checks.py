import re

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import JobRecord
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.slurm_checks import check_outside_of_job, check_slurm
from tf_preempt.cli.doctor.slurm_facts import LaunchOfSrun, SlurmFacts
from tf_preempt.errors import SlurmError

NOW = 1_000_000.0
IN_STEP = SlurmJob(
    job_id=7, step_id=0, procid=0, ntasks=2, nodes=("n0", "n1"), tasks_per_node=(1, 1), restart_count=3
)
IN_SCRIPT = SlurmJob(job_id=7, step_id=None, procid=0, ntasks=2, nodes=("n0", "n1"))


def found(
    name,
    *,
    job=IN_STEP,
    save_s=None,
    script=None,
    config=None,
    told=None,
    partition=None,
    launch=LaunchOfSrun.UNKNOWN,
    **record,
):
    values = {
        "state": "RUNNING",
        "is_batch": True,
        "may_requeue": True,
        "limit_s": 3600.0,
        "end_time": NOW + 600,
    }
    facts = SlurmFacts(
        record=JobRecord(**{**values, **record}),
        script=script,
        config=config or {},
        partition=partition or {},
        launch=launch,
    )
    findings = check_slurm(facts, job, now=NOW, save_s=save_s, **(told or {}))
    return next((finding for finding in findings if finding.name == name), None)


def test_a_step_is_ok_and_says_how_often_the_job_was_restarted():
    finding = found("step")
    assert (finding.status, finding.message) == (
        Status.OK,
        "job 7, step 0 of 2 task(s), restarted 3 time(s)",
    )


def test_a_program_without_srun_is_warned_of():
    finding = found("step", job=IN_SCRIPT)
    assert finding.status is Status.WARNING
    assert "gets no notice before the grace" in finding.message
    assert "trains alone, not as 2 tasks" in finding.message
    assert "(exec srun tf-preempt run -- python train.py)" in finding.hint


@pytest.mark.parametrize(
    ("record", "status", "said"),
    [
        ({}, Status.OK, "may be requeued (JobRequeue=1)"),
        ({"may_requeue": False}, Status.WARNING, "may not be requeued"),
        ({"may_requeue": None}, Status.INFO, "unknown"),
        ({"is_batch": False}, Status.INFO, "none of sbatch's"),
        ({"is_batch": False, "may_requeue": False}, Status.INFO, "none of sbatch's"),
    ],
)
def test_whether_the_job_comes_back(record, status, said):
    finding = found("requeue", config={"JobRequeue": "1"}, **record)
    assert finding.status is status
    assert said in finding.message


@pytest.mark.parametrize(("directory", "named"), [("/runs/7", "/runs/7"), (None, "DIRECTORY")])
def test_a_job_that_is_none_of_sbatchs_is_told_how_to_have_one_checked(directory, named):
    hint = found("requeue", told={"directory": directory}, is_batch=False).hint
    assert f"`exec srun tf-preempt doctor {named}` into the batch script" in hint


PREEMPTED = {"config": {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "KillWait": "30"}}


@pytest.mark.parametrize("grace", [{"GraceTime": "60"}, {"GraceTime": "60", "PreemptMode": "CANCEL"}, {}])
def test_a_training_that_would_be_lost_while_it_starts_is_told_of_with_the_line_that_helps(grace):
    finding = found("start", partition={"PartitionName": "low", **grace}, **PREEMPTED)
    assert (finding.status, finding.hint) == (Status.INFO, "exec srun tf-preempt run -- python train.py")


@pytest.mark.parametrize(
    "changed",
    [
        {"told": {"is_supervised": True}},
        {"partition": {"PartitionName": "low", "GraceTime": "0"}},
        {"partition": {"PartitionName": "high", "GraceTime": "60", "PreemptMode": "OFF"}},
        {"may_requeue": False},
        {"is_batch": False},
    ],
    ids=["run starts it", "no grace", "not preempted", "not requeued", "no batch job"],
)
def test_a_start_at_which_nothing_is_lost_is_not_spoken_of(changed):
    partition = {"PartitionName": "low", "GraceTime": "60"}
    assert found("start", **{"partition": partition, **PREEMPTED, **changed}) is None


@pytest.mark.parametrize(("directory", "named"), [("/runs/7", "/runs/7"), (None, "DIRECTORY")])
def test_outside_of_a_job_the_cure_names_the_directory(directory, named):
    finding = check_outside_of_job(directory)
    assert (finding.status, finding.name) == (Status.INFO, "slurm")
    assert f"put `exec srun tf-preempt doctor {named}` into the batch script" in finding.hint
    assert "#SBATCH lines" in finding.hint


def test_a_job_that_is_not_requeued_is_told_how_to_change_that():
    assert "scontrol update JobId=$SLURM_JOB_ID Requeue=1" in found("requeue", may_requeue=False).hint


@pytest.mark.parametrize(
    ("record", "save_s", "values"),
    [
        ({}, None, {"limit_s": 3600.0, "end": NOW + 600, "left_s": 600.0, "lead_s": 60.0}),
        ({}, 10.0, {"limit_s": 3600.0, "end": NOW + 600, "left_s": 600.0, "lead_s": 90.0}),
        ({"limit_s": None}, None, {"limit_s": None, "end": NOW + 600, "left_s": 600.0}),
        ({"end_time": None}, None, {"limit_s": 3600.0, "end": None, "left_s": None, "lead_s": 60.0}),
    ],
)
def test_the_time_limit_and_when_a_training_leaves(record, save_s, values):
    assert found("time-limit", save_s=save_s, **record).values == values


@pytest.mark.parametrize(("save_s", "status"), [(20.0, Status.INFO), (40.0, Status.WARNING)])
def test_a_limit_that_saves_take_most_of_is_warned_of(save_s, status):
    finding = found("time-limit", limit_s=200.0, save_s=save_s)
    assert finding.status is status
    assert finding.values["lead_s"] == 20.0 + 3 * save_s


def test_the_time_limit_is_said_in_hours():
    message = found("time-limit").message
    assert message.startswith("1:00:00, at ")
    assert ", in 0:10:00; a training saves and leaves 60 s before" in message


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("TERM@120", Status.OK, "SIGTERM to the tasks, 120 s or more before the end"),
        ("TERM", Status.OK, "60 s or more"),
        ("15@30", Status.OK, "SIGTERM to the tasks, 30 s"),
        ("sigusr1@30", Status.OK, "SIGUSR1 to the tasks"),
        ("R:USR2@30", Status.OK, "SIGUSR2 to the tasks"),
        ("B:TERM@120", Status.ERROR, "the tasks are killed without notice, and nothing is saved"),
        ("b:15", Status.ERROR, "the tasks are killed without notice, and nothing is saved"),
        ("b:USR1", Status.WARNING, "if srun took its place (exec srun)"),
        ("USR1@3500", Status.WARNING, "comes up to 3560 s before the end of a time limit of 3600 s"),
        ("HUP@120", Status.WARNING, "is SIGHUP, which nobody waits for"),
        ("B:HUP@120", Status.WARNING, "is SIGHUP, which nobody waits for"),
        ("999@120", Status.WARNING, "is 999, which nobody waits for"),
        ("@120", Status.WARNING, "is nothing that sbatch takes"),
        ("", Status.WARNING, "is nothing that sbatch takes"),
    ],
)
def test_the_signal_before_the_time_limit(text, status, said):
    finding = found("signal", script={"--signal": text})
    assert finding.status is status
    assert said in finding.message


@pytest.mark.parametrize("limit_s", [3600.0, None])
@pytest.mark.parametrize("text", ["B:USR1@90", "B:usr2", "BR:12@30"])
def test_a_signal_to_a_script_whose_place_srun_takes_is_all_right(text, limit_s):
    finding = found("signal", script={"--signal": text}, launch=LaunchOfSrun.EXEC, limit_s=limit_s)
    assert (finding.status, finding.hint) == (Status.OK, None)
    assert "to srun, which stands in the script's place and passes it on to the tasks" in finding.message


def test_a_signal_to_such_a_script_may_come_too_early_and_kill_srun_like_any_other():
    early, kill = (
        found("signal", script={"--signal": text}, launch=LaunchOfSrun.EXEC)
        for text in ("B:USR1@3500", "B:TERM")
    )
    assert (early.status, kill.status) == (Status.WARNING, Status.ERROR)


def test_sigterm_to_a_script_that_has_srun_for_a_child_is_saved_and_the_end():
    finding = found("signal", script={"--signal": "B:TERM"}, launch=LaunchOfSrun.CHILD)
    assert finding.status is Status.ERROR
    assert "Slurm then ends the tasks: they save, and the job is over for good" in finding.message


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (LaunchOfSrun.CHILD, "which dies of it, as its srun is not started with exec"),
        (LaunchOfSrun.UNKNOWN, "if srun took its place (exec srun)"),
    ],
)
def test_a_signal_to_a_script_that_is_not_passed_on_has_two_cures(launch, said):
    finding = found("signal", script={"--signal": "B:USR1@90"}, launch=launch)
    assert finding.status is Status.WARNING
    assert said in finding.message
    assert finding.hint.startswith("#SBATCH --signal=USR1@90 (90 s: ")
    assert finding.hint.endswith("; or keep it, and put exec before srun")


@pytest.mark.parametrize("launch", [LaunchOfSrun.CHILD, LaunchOfSrun.UNKNOWN])
def test_a_signal_to_the_script_that_comes_too_early_is_not_to_be_kept(launch):
    assert "keep" not in found("signal", script={"--signal": "B:USR1@1800"}, launch=launch).hint


@pytest.mark.parametrize(
    ("launch", "changed", "is_told"),
    [
        (LaunchOfSrun.CHILD, {}, True),
        (LaunchOfSrun.EXEC, {}, False),
        (LaunchOfSrun.UNKNOWN, {}, False),
        (LaunchOfSrun.CHILD, {"may_requeue": False}, False),
    ],
)
def test_an_srun_that_may_outlive_its_script_is_remarked_with_the_cure(launch, changed, is_told):
    finding = found("exec", launch=launch, **changed)
    assert (finding is not None) is is_told
    if finding:
        assert (finding.status, finding.hint) == (Status.INFO, "put exec before it: exec srun ...")
        assert "ends the step of the job's next run" in finding.message


ENOUGH = "60 s for the running step and three saves"
NONE_YET = f"{ENOUGH}, none measured yet"


@pytest.mark.parametrize(
    ("text", "save_s", "cure"),
    [
        (
            "B:TERM@90",
            None,
            f"USR1@90, or TERM@90 (90 s: the script's own; enough are {NONE_YET}); "
            "without B: it comes to the tasks",
        ),
        ("HUP", None, f"TERM@60 (60 s: the script's own; enough are {NONE_YET})"),
        ("HUP@20", None, f"TERM@60 (60 s: {NONE_YET})"),
        ("@5", 12.3, f"TERM@97 (97 s: {ENOUGH} of 12 s, the slowest measured)"),
        (
            "HUP@120",
            10.0,
            f"TERM@120 (120 s: the script's own; enough are {ENOUGH} of 10 s, the slowest measured)",
        ),
        ("HUP@120", 20.1, f"TERM@121 (121 s: {ENOUGH} of 20 s, the slowest measured)"),
    ],
)
def test_the_cure_of_a_signal_says_where_its_number_comes_from(text, save_s, cure):
    hint = found("signal", script={"--signal": text}, save_s=save_s).hint
    assert hint.removesuffix(", or TerminationConfig(signals=...)") == f"#SBATCH --signal={cure}"


LEAVE_OUT = "leave --signal out (the time limit is watched without it)"
LIMITS_S = (60.0, 120.0, 139.0, 140.0, 180.0, 300.0, 3600.0, None)
SIGNALS = (
    "B:TERM",
    "B:TERM@60",
    "USR1@60",
    "USR1@12",
    "USR1@10",
    "TERM@3600",
    "B:USR2@600",
    "HUP@120",
    "KILL",
    "@5",
)


@pytest.mark.parametrize("text", SIGNALS)
@pytest.mark.parametrize("limit_s", LIMITS_S)
def test_who_follows_the_cure_of_a_signal_is_not_warned_again(limit_s, text):
    hint = found("signal", script={"--signal": text}, limit_s=limit_s).hint
    if hint is None:
        return
    better = re.findall(r"\b[A-Z0-9]+@\d+", hint)
    assert better or hint.startswith(LEAVE_OUT)
    for script in [{"--signal": word} for word in better] or [{}]:
        assert not found("signal", script=script, limit_s=limit_s).status.is_trouble
    for minutes in re.findall(r"--time=(\d+)", hint):
        again = found("signal", script={"--signal": text}, limit_s=60.0 * int(minutes))
        assert not again.status.is_trouble


@pytest.mark.parametrize(
    ("text", "limit_s", "cure"),
    [
        ("B:TERM@60", 120.0, LEAVE_OUT),
        (
            "USR1@60",
            120.0,
            f"{LEAVE_OUT}, or ask for more time: #SBATCH --time=4",
        ),
        (
            "USR1@600",
            600.0,
            "#SBATCH --signal=USR1@240 (240 s: half of the limit of 600 s, less the 60 s that Slurm may be "
            "early), or ask for more time: #SBATCH --time=22",
        ),
    ],
)
def test_the_cure_of_a_signal_fits_the_limit(text, limit_s, cure):
    assert found("signal", script={"--signal": text}, limit_s=limit_s).hint == cure


@pytest.mark.parametrize(
    ("text", "can"), [("HUP@60", True), ("KILL@60", False), ("STOP@60", False), ("999", False)]
)
def test_only_a_signal_that_can_be_caught_may_be_asked_for(text, can):
    assert ("TerminationConfig(signals=...)" in found("signal", script={"--signal": text}).hint) is can


def test_a_signal_that_comes_after_the_watched_limit_is_no_trouble():
    signal, limit = (
        found(name, script={"--signal": "TERM@120"}, save_s=121.0) for name in ("signal", "time-limit")
    )
    assert signal.status is Status.OK
    assert limit.values["lead_s"] > signal.values["lead_s"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"script": {}},
            "no --signal in the batch script; one on sbatch's command line is not to be seen from a job",
        ),
        ({"script": None}, "--signal is unknown: the batch script cannot be read"),
        ({"script": None, "is_batch": False}, "--signal is unknown: Slurm tells it of batch jobs only"),
    ],
)
def test_a_signal_that_is_not_told_is_no_trouble(changed, said):
    finding = found("signal", **changed)
    assert (finding.status, finding.message) == (Status.INFO, said)


@pytest.mark.parametrize(
    ("script", "config", "status"),
    [
        ({"--open-mode": "append"}, {}, Status.OK),
        ({"--open-mode": "a"}, {}, Status.OK),
        ({"--open-mode": "truncate"}, {"JobFileAppend": "1"}, Status.WARNING),
        ({}, {"JobFileAppend": "1"}, Status.OK),
        ({}, {"JobFileAppend": "0"}, Status.WARNING),
        (None, {}, Status.WARNING),
    ],
)
def test_output_that_a_requeue_empties_is_warned_of(script, config, status):
    assert found("open-mode", script=script, config=config).status is status


@pytest.mark.parametrize(
    ("open_mode", "script", "status"),
    [
        ("a", {}, Status.OK),
        ("a", None, Status.OK),
        ("a", {"--open-mode": "truncate"}, Status.OK),
        ("t", {"--open-mode": "append"}, Status.WARNING),
    ],
)
def test_the_open_mode_that_sbatch_tells_the_job_counts_more_than_the_script(open_mode, script, status):
    finding = found("open-mode", told={"open_mode": open_mode}, script=script)
    assert (finding.status, finding.values["open_mode"]) == (status, open_mode)


@pytest.mark.parametrize("record", [{"may_requeue": False}, {"is_batch": False}])
def test_output_of_a_job_that_is_not_requeued_is_not_spoken_of(record):
    assert found("open-mode", script={}, **record) is None


def test_a_controller_that_does_not_answer_is_a_warning_with_the_cure():
    facts = SlurmFacts(problems=(SlurmError("scontrol is not installed here.", hint="bind it"),))
    findings = check_slurm(facts, IN_STEP, now=NOW, save_s=None)
    assert [(finding.name, finding.status) for finding in findings] == [
        ("step", Status.OK),
        ("slurm", Status.WARNING),
    ]
    assert findings[1].hint == "bind it"
