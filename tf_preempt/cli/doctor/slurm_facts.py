"""What the controller of Slurm tells about a job, its partition and the cluster's configuration.

References:
    scontrol(1), sacctmgr(1), slurm.conf(5), sbatch(1); the answers of Slurm 22.05.8.  ``scontrol show job``
    tells neither ``--signal`` nor ``--open-mode``; the batch script does, where its ``#SBATCH`` lines have
    them, and only the job's owner may read it.  Of ``--open-mode`` the job has SLURM_OPEN_MODE.  Nobody tells
    of a ``--signal`` on sbatch's command line (``squeue --json`` neither), but an accounting database, where
    there is one.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import shlex
from collections.abc import Mapping

from tf_preempt._slurm_control import JobRecord, SlurmControl, parse_duration, parse_fields
from tf_preempt.errors import SlurmError

__all__ = [
    "LaunchOfSrun",
    "SlurmFacts",
    "has_slurm",
    "parse_config",
    "parse_launch",
    "parse_script_options",
    "read_slurm_facts",
    "seconds_of",
]

_SETTING = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
_SCRIPT_OPTIONS = ("--signal", "--open-mode")
_UNSET = ("", "(null)", "N/A")
_JOINTS = {";", "&", "&&", "|", "||", "|&"}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


class LaunchOfSrun(enum.Enum):
    """How a batch script starts ``srun`` in its last command."""

    EXEC = "exec"
    """In its own place, itself or by another program: a signal to the script reaches it."""
    CHILD = "child"
    """As its child: the script dies of a signal that it does not trap."""
    UNKNOWN = "unknown"
    """The last command is another one, or the script cannot be read."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmFacts:
    """The controller's answers.

    Args:
        record: of the job; None if there is none.
        partition: fields of ``scontrol show partition``; empty if unknown.
        config: settings of ``scontrol show config``; empty if unknown.
        qos: ``Name``, ``GraceTime`` and ``PreemptMode`` of the job's QOS, where QOS preempt; else empty.
        script: the options of the batch script that matter here, by name; None if it cannot be read.
        launch: how the batch script starts ``srun`` in its last command.
        problems: why something is unknown.
    """

    record: JobRecord | None = None
    partition: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config: Mapping[str, str] = dataclasses.field(default_factory=dict)
    qos: Mapping[str, str] = dataclasses.field(default_factory=dict)
    script: Mapping[str, str] | None = None
    launch: LaunchOfSrun = LaunchOfSrun.UNKNOWN
    problems: tuple[SlurmError, ...] = ()


def has_slurm(control: SlurmControl) -> bool:
    """Says whether Slurm can be used from here: its commands are installed, and its controller answers them.

    Args:
        control: the controller.
    """
    try:
        return control.has("scontrol") and " is UP" in control.ask("scontrol", "ping")
    except SlurmError:
        return False


def read_slurm_facts(control: SlurmControl, job_id: int) -> SlurmFacts:
    """Asks the controller; what it does not answer is left out.

    Args:
        control: the controller.
        job_id: number of the job.
    """
    try:
        record = control.job(job_id)
    except SlurmError as error:
        return SlurmFacts(problems=(error,))
    problems: list[SlurmError] = []

    def ask(*words: str) -> str:
        try:
            return control.ask(*words)
        except SlurmError as error:
            problems.append(error)
            return ""

    config = parse_config(ask("scontrol", "show", "config"))
    if not control.has("scontrol"):
        return SlurmFacts(record=record, problems=tuple(problems))  # the same again for each question
    partition = ask("scontrol", "show", "partition", "-o", record.partition) if record.partition else ""
    text = ask("scontrol", "write", "batch_script", str(job_id), "-") if record.is_batch else ""
    qos: dict[str, str] = {}
    if config.get("PreemptType") == "preempt/qos":
        name = ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%q").strip()
        told = (
            ask("sacctmgr", "-nP", "show", "qos", name, "format=Name,GraceTime,PreemptMode") if name else ""
        )
        qos = dict(zip(("Name", "GraceTime", "PreemptMode"), told.strip().split("|"), strict=False))
    return SlurmFacts(
        record=record,
        partition=parse_fields(partition),
        config=config,
        qos={name: value for name, value in qos.items() if value},
        script=parse_script_options(text),
        launch=parse_launch(text),
        problems=tuple(problems),
    )


def parse_config(text: str) -> dict[str, str]:
    """Reads the lines ``Name = value`` of ``scontrol show config``; settings without a value are left out."""
    matches = map(_SETTING.fullmatch, text.splitlines())
    return {match[1]: match[2] for match in matches if match and match[2] not in _UNSET}


def seconds_of(text: str | None) -> float | None:
    """Seconds in ``60``, ``60 sec`` or ``00:01:00``; None if it says something else."""
    match = re.fullmatch(r"(\d+)(?:\s*sec)?", (text or "").strip())
    return float(match[1]) if match else parse_duration(text)


def parse_script_options(text: str) -> dict[str, str] | None:
    """Reads what the ``#SBATCH`` lines of a batch script say, of the options that matter here.

    As sbatch does it: only lines before the first command, and of an option that occurs twice the last.  Of a
    heterogeneous job these are the first component's.

    Args:
        text: the script.

    Returns:
        Options to values; None if `text` is no script.
    """
    if not text.startswith("#!"):
        return None
    options: dict[str, str] = {}
    for line in text.splitlines():
        words = _directive(line)
        if words is None:
            if line.strip() and not line.lstrip().startswith("#"):
                break
            continue
        if words[:1] in (["hetjob"], ["packjob"]):
            break
        for at, word in enumerate(words):
            name, has_value, value = word.partition("=")
            if name in _SCRIPT_OPTIONS:
                options[name] = value if has_value else "".join(words[at + 1 : at + 2])
    return options


def _directive(line: str) -> list[str] | None:
    """The words of a ``#SBATCH`` line; None if it is none."""
    if not re.match(r"#SBATCH\s", line):
        return None
    try:
        return shlex.split(line[len("#SBATCH") :], comments=True)
    except ValueError:
        return line.split()[1:]


def parse_launch(text: str) -> LaunchOfSrun:
    """Reads how a batch script starts ``srun`` in its last command.

    Args:
        text: the script.

    Returns:
        `LaunchOfSrun.UNKNOWN` also of a last line with more than one command.
    """
    lines = text.replace("\\\n", " ").splitlines() if text.startswith("#!") else []
    commands = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    try:
        words = _words(commands[-1]) if commands else []
    except ValueError:  # a quotation that began on an earlier line
        words = []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    has_srun = any(word.rpartition("/")[2] == "srun" for word in words)
    if not has_srun or _JOINTS.intersection(words):
        return LaunchOfSrun.UNKNOWN
    return LaunchOfSrun.EXEC if words[0] == "exec" else LaunchOfSrun.CHILD


def _words(command: str) -> list[str]:
    """The words and operators of a line of shell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)
