import pytest

from tf_preempt._slurm_control import JobRecord
from tf_preempt.cli.doctor.slurm_facts import (
    LaunchOfSrun,
    parse_config,
    parse_launch,
    parse_script_options,
    read_slurm_facts,
    seconds_of,
)
from tf_preempt.errors import SlurmError

CONFIG = """Configuration data as of 2026-11-30T08:46:11
AccountingStorageBackupHost = (null)
KillWait                = 30 sec
PreemptMode             = REQUEUE
PreemptType             = {kind}
SlurmctldParameters     = (null)

Slurmctld(primary) at head1 is UP
"""
PARTITION = "PartitionName=low AllowGroups=ALL GraceTime=60 OverTimeLimit=NONE PreemptMode=REQUEUE State=UP\n"
SCRIPT = "#!/bin/bash\n#SBATCH --signal=TERM@120\nsrun python train.py\n"


class Control:
    """A controller that knows one job, and the answers to some questions."""

    def __init__(self, record, answers):
        self.asked = []
        self._record = record
        self._answers = answers

    def has(self, command):
        return any(words.split()[0] == command for words in self._answers)

    def job(self, job_id):
        if self._record is None:
            raise SlurmError("squeue is not installed here.", hint="bind it")
        return self._record

    def ask(self, *words):
        self.asked.append(" ".join(words))
        if self.asked[-1] not in self._answers:
            raise SlurmError(f"`{self.asked[-1]}` refused")
        return self._answers[self.asked[-1]]


def ask(answers, *, is_batch=True, partition="low"):
    control = Control(JobRecord(state="RUNNING", is_batch=is_batch, partition=partition), answers)
    return read_slurm_facts(control, 7), control.asked


def answers(kind="preempt/partition_prio"):
    return {
        "scontrol show config": CONFIG.format(kind=kind),
        "scontrol show partition -o low": PARTITION,
        "scontrol write batch_script 7 -": SCRIPT,
        "squeue --noheader --jobs=7 --format=%q": "normal\n",
        "sacctmgr -nP show qos normal format=Name,GraceTime,PreemptMode": "normal|00:01:00|cluster\n",
    }


def test_everything_is_asked_once():
    facts, asked = ask(answers())
    assert (facts.record.partition, facts.problems) == ("low", ())
    assert facts.config == {
        "KillWait": "30 sec",
        "PreemptMode": "REQUEUE",
        "PreemptType": "preempt/partition_prio",
    }
    assert (facts.partition["GraceTime"], facts.script) == ("60", {"--signal": "TERM@120"})
    assert facts.launch is LaunchOfSrun.CHILD
    assert facts.qos == {}
    assert len(asked) == len(set(asked)) == 3


def test_there_is_no_script_of_what_sbatch_has_not_started():
    facts, asked = ask(answers(), is_batch=False)
    assert (facts.script, facts.launch) == (None, LaunchOfSrun.UNKNOWN)
    assert not [words for words in asked if "batch_script" in words]


def test_where_qos_preempt_the_jobs_qos_is_asked_for():
    facts, _ = ask(answers(kind="preempt/qos"))
    assert facts.qos == {"Name": "normal", "GraceTime": "00:01:00", "PreemptMode": "cluster"}


def test_what_is_refused_is_left_out_and_told():
    told = answers()
    del told["scontrol write batch_script 7 -"], told["scontrol show config"]
    facts, _ = ask(told)
    assert (facts.config, facts.script) == ({}, None)
    assert [str(problem).split("`")[1] for problem in facts.problems] == [
        "scontrol show config",
        "scontrol write batch_script 7 -",
    ]


def test_a_machine_without_scontrol_and_squeue_gives_one_problem_with_the_cure():
    facts = read_slurm_facts(Control(None, {}), 7)
    assert facts.record is None
    assert [problem.hint for problem in facts.problems] == ["bind it"]


def test_a_machine_with_squeue_only_knows_the_job_and_says_what_is_missing():
    facts, _ = ask({"squeue": ""}, partition="")
    assert (facts.record.state, facts.config, facts.partition) == ("RUNNING", {}, {})
    assert [str(problem) for problem in facts.problems] == ["`scontrol show config` refused"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60.0),
        ("60 sec", 60.0),
        ("00:01:00", 60.0),
        ("0", 0.0),
        ("UNLIMITED", None),
        ("", None),
        (None, None),
    ],
)
def test_seconds_of_settings(text, seconds):
    assert seconds_of(text) == seconds


def test_settings_without_a_value_are_left_out():
    assert parse_config("A = 1\nB  = (null)\nC = x = y\nnot a setting\nD =\n") == {"A": "1", "C": "x = y"}


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("", {}),
        ("#SBATCH --signal=TERM@120", {"--signal": "TERM@120"}),
        ("#SBATCH --signal TERM@120 -N2", {"--signal": "TERM@120"}),
        ("#SBATCH\t-N2 --open-mode='append' # --signal=USR1", {"--open-mode": "append"}),
        ("# a comment\n\n#SBATCH --signal=TERM", {"--signal": "TERM"}),
        ("#SBATCH --signal=TERM@1\n#SBATCH --signal=TERM@2", {"--signal": "TERM@2"}),
        ("echo\n#SBATCH --signal=TERM", {}),
        ("#SBATCH --signal=TERM\n#SBATCH hetjob\n#SBATCH --signal=USR1", {"--signal": "TERM"}),
        ("##SBATCH --signal=TERM\n #SBATCH --signal=TERM", {}),
        (
            "#SBATCH --comment='x --signal=USR1@2\n#SBATCH --open-mode=append",
            {"--open-mode": "append", "--signal": "USR1@2"},
        ),
        ("#SBATCH --signal", {"--signal": ""}),
    ],
)
def test_options_of_a_script_are_read_as_sbatch_reads_them(lines, options):
    assert parse_script_options(f"#!/bin/bash\n{lines}\n") == options


@pytest.mark.parametrize("text", ["", "slurm_load: no\n"])
def test_what_is_no_script_has_no_options(text):
    assert parse_script_options(text) is None


EXEC, CHILD, UNKNOWN = LaunchOfSrun.EXEC, LaunchOfSrun.CHILD, LaunchOfSrun.UNKNOWN


@pytest.mark.parametrize(
    ("lines", "launch"),
    [
        ("exec srun python train.py", EXEC),
        ("A=1 exec /usr/bin/srun -n2 python train.py > out 2>&1  # srun\n\n# the end", EXEC),
        ("exec srun \\\n  tf-preempt run -- \\\n  python train.py; x", UNKNOWN),
        ("exec srun \\\n  tf-preempt run -- \\\n  python train.py", EXEC),
        ("exec tf-preempt run -- srun python train.py", EXEC),
        ("srun python train.py 'a;b'", CHILD),
        ("  A='1 2' srun \\\n  python train.py", CHILD),
        ("tf-preempt run -- srun python train.py", CHILD),
        ("exec srun python train.py | tee out", UNKNOWN),
        ("srun python train.py || exit 1", UNKNOWN),
        ("srun python train.py &", UNKNOWN),
        ("srun python train.py\necho done", UNKNOWN),
        ("srun python train.py &\nwait", UNKNOWN),
        ("srun sh -c '\n  python train.py\n'", UNKNOWN),
        ("python train.py  # srun", UNKNOWN),
        ("# srun python train.py", UNKNOWN),
        ("A=1", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_how_a_script_starts_srun_is_read_from_its_last_command(lines, launch):
    assert parse_launch(f"#!/bin/bash\n#SBATCH -N2\n{lines}\n") is launch


@pytest.mark.parametrize("text", ["", "slurm_load: no\nsrun x\n"])
def test_what_is_no_script_does_not_tell_how_it_starts_srun(text):
    assert parse_launch(text) is UNKNOWN
