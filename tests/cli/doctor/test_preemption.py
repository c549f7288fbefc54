import pytest

from tf_preempt._slurm_control import JobRecord
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.preemption import Preemption, check_bad_exit, check_preemption, preemption_of
from tf_preempt.cli.doctor.slurm_facts import SlurmFacts

PRIO = "preempt/partition_prio"


def facts(kind=PRIO, mode="REQUEUE", partition=None, qos=None, kill_wait="30 sec"):
    config = {"PreemptType": kind, "PreemptMode": mode, "KillWait": kill_wait}
    return SlurmFacts(
        record=JobRecord(state="RUNNING", partition="low"),
        config={name: value for name, value in config.items() if value},
        partition={"PartitionName": "low", **(partition or {})},
        qos=qos or {},
    )


@pytest.mark.parametrize(
    ("told", "mode", "owner", "grace_s"),
    [
        (facts(partition={"PreemptMode": "REQUEUE", "GraceTime": "60"}), "REQUEUE", "partition low", 60.0),
        (facts(partition={"PreemptMode": "OFF", "GraceTime": "60"}), "OFF", "partition low", 60.0),
        (facts(partition={"GraceTime": "0"}, mode="CANCEL"), "CANCEL", "partition low", 0.0),
        (facts(partition={"GraceTime": "0"}, mode="GANG,SUSPEND"), "SUSPEND", "partition low", 0.0),
        (facts(kind="preempt/none", partition={"PreemptMode": "REQUEUE"}), "OFF", "the cluster", None),
        (
            facts(kind="preempt/qos", qos={"Name": "q", "GraceTime": "00:01:00", "PreemptMode": "cluster"}),
            "REQUEUE",
            "QOS q",
            60.0,
        ),
        (
            facts(
                kind="preempt/qos", qos={"Name": "q", "PreemptMode": "cancel"}, partition={"GraceTime": "9"}
            ),
            "CANCEL",
            "QOS q",
            None,
        ),
        (facts(kind="", mode=""), "", "partition low", None),
    ],
)
def test_who_decides_depends_on_the_clusters_type_of_preemption(told, mode, owner, grace_s):
    preemption = preemption_of(told)
    assert (preemption.mode, preemption.owner, preemption.grace_s) == (mode, owner, grace_s)
    assert preemption.kill_wait_s == 30.0


def preemption(**changed):
    values = {"kind": PRIO, "mode": "REQUEUE", "owner": "partition low", "grace_s": 60.0, "kill_wait_s": 30.0}
    return Preemption(**{**values, **changed})


def test_a_notice_is_the_grace_and_what_comes_after_it():
    notice = preemption().notice()
    assert (notice.seconds, notice.origin) == (90.0, "GraceTime 60 s + KillWait 30 s")
    assert notice.cure == "ask the administrator for a longer GraceTime of partition low"


@pytest.mark.parametrize(
    "changed", [{"mode": "OFF"}, {"mode": "SUSPEND"}, {"grace_s": None}, {"kill_wait_s": None}]
)
def test_no_notice_is_known_where_jobs_do_not_end_or_a_time_is_missing(changed):
    assert preemption(**changed).notice() is None


@pytest.mark.parametrize(
    ("changed", "status", "said"),
    [
        (
            {},
            Status.OK,
            "GraceTime 60 s, KillWait 30 s: SIGTERM to the step's tasks at once",
        ),
        ({"grace_s": 0.0}, Status.WARNING, "gets no grace (GraceTime=0"),
        ({"grace_s": None}, Status.INFO, "its GraceTime is unknown"),
        ({"kill_wait_s": None}, Status.OK, "KillWait an unknown time:"),
        ({"grace_s": 0.0}, Status.WARNING, "and SIGKILL 30 s (KillWait) later"),
        ({"mode": "CANCEL"}, Status.OK, "Slurm does not requeue it then, a training has it requeued"),
        ({"mode": "CANCEL", "grace_s": 0.0}, Status.WARNING, "gets no grace"),
        ({"mode": "OFF"}, Status.INFO, "jobs are not preempted"),
        ({"mode": "SUSPEND"}, Status.INFO, "jobs are not ended when preempted"),
        ({"mode": ""}, Status.INFO, "PreemptMode=unknown"),
    ],
)
def test_what_is_said_of_a_preemption(changed, status, said):
    finding = check_preemption(preemption(**changed), {})
    assert finding.status is status
    assert said in finding.message
    assert finding.values["mode"] == changed.get("mode", "REQUEUE")


def test_without_a_grace_the_save_has_to_fit_into_killwait():
    hint = check_preemption(preemption(grace_s=0.0), {}).hint
    assert "ask the administrator for a GraceTime of partition low" in hint
    assert "until then they have to fit into KillWait" in hint


def test_a_qos_of_unknown_grace_says_how_to_find_out():
    finding = check_preemption(preemption(kind="preempt/qos", owner="QOS q", grace_s=None), {})
    assert finding.hint == "sacctmgr show QOS q format=GraceTime"


@pytest.mark.parametrize(
    "config",
    [{"PreemptParameters": "send_user_signal"}, {"SlurmctldParameters": "x,preempt_send_user_signal"}],
)
def test_a_cluster_that_sends_the_users_signal_is_told(config):
    assert (
        "SIGTERM (or --signal's signal) to the step's tasks" in check_preemption(preemption(), config).message
    )


@pytest.mark.parametrize(
    ("config", "status"),
    [({"KillOnBadExit": "1"}, Status.WARNING), ({"KillOnBadExit": "0"}, Status.INFO), ({}, Status.INFO)],
)
def test_killing_all_tasks_with_the_first_is_warned_of(config, status):
    assert check_bad_exit(config).status is status


def test_killing_all_tasks_with_the_first_has_two_cures():
    hint = check_bad_exit({"KillOnBadExit": "1"}).hint
    assert "srun --kill-on-bad-exit=0" in hint
    assert "srun tf-preempt run -- python train.py" in hint
