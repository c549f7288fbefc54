"""Asks Slurm's controller about a job, and has it requeued: ``scontrol`` and ``squeue`` as child processes.

Slurm signals everything that a step has started, so also a ``scontrol`` that is just asking: a requeue ends
the very command that asked for it.  Therefore the commands run with those signals ignored.

References:
    scontrol(1), squeue(1); their answers under Slurm 22.05.8 for jobs in all the situations named here.
"""

from __future__ import annotations

import calendar
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tf_preempt.errors import SlurmError

__all__ = ["JobRecord", "SlurmControl", "jobs_in", "parse_duration", "parse_fields", "parse_time"]

# `sh` sets to "ignore" what the command then inherits; a Python hook between fork and exec is not safe in a
# program with threads.
_UNDISTURBED = ("/bin/sh", "-c", 'trap "" TERM INT HUP CONT USR1 USR2; exec "$0" "$@"')
# A step's environment may lack the PATH of the batch script (sbatch --export=NAME).
_USUAL_PLACES = "/usr/bin:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin:/usr/slurm/bin"
_MOST_SAID = 200
_FIELD = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z0-9_/:]*)=(\S*)")
# A job's name may say anything, also "JobState=CANCELLED" or line breaks; it stands between these two.
_BEFORE_NAME = re.compile(r"^JobId=(\d+)(?=\s)(.*?)\sJobName=", re.MULTILINE)
_AFTER_NAME = re.compile(r"\sUserId=[^=]*\(\d+\)\s")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)")
_DURATION = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d\d)")


@dataclass(frozen=True, kw_only=True)
class JobRecord:
    """What the controller knows about a job.

    Args:
        state: such as ``RUNNING`` or ``COMPLETING``, in upper case; of a job that is ending, Slurm 22.05 says
            only ``COMPLETING``.
        reason: why it waits or ended, such as ``TimeLimit``; ``None`` (the word) if there is none.
        restarts: how often it was requeued so far; None if not said.
        may_requeue: whether it may be requeued; None if not said.
        is_batch: whether ``sbatch`` started it: Slurm can requeue no other; None if not said.
        start_time: when this run began, seconds since the epoch; None if unknown.
        end_time: when it ends or ended, likewise.
        preempt_time: when it was preempted, or what its end was moved to for that, likewise; None if it
            was not.
        limit_s: its time limit in seconds; None if it has none.
        partition: name of its partition; empty if unknown.
        fields: all fields of ``scontrol show job``, as text, but not the job's name.
    """

    state: str
    reason: str = "None"
    restarts: int | None = None
    may_requeue: bool | None = None
    is_batch: bool | None = None
    start_time: float | None = None
    end_time: float | None = None
    preempt_time: float | None = None
    limit_s: float | None = None
    partition: str = ""
    fields: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def from_scontrol(cls, text: str, *, job_id: int | None = None) -> JobRecord:
        """Reads ``scontrol show job -o``, times in UTC.

        Args:
            text: the answer: of a heterogeneous job all components, and all elements of an array if the job
                asked about is its last element, whose number is the array's.
            job_id: number of the job that is wanted; None: the first.

        Raises:
            SlurmError: there is no such job in it.
        """
        fields = _fields_of_job(text, job_id)
        if not fields.get("JobState"):
            which = "the job" if job_id is None else f"job {job_id}"
            raise SlurmError(f"`scontrol show job` names no state of {which}: {text.strip()[:200]!r}.")
        return cls(
            state=fields["JobState"].upper(),
            reason=fields.get("Reason", "None"),
            restarts=_whole_number(fields.get("Restarts")),
            may_requeue=_flag(fields.get("Requeue")),
            is_batch=_flag(fields.get("BatchFlag")),
            start_time=parse_time(fields.get("StartTime")),
            end_time=parse_time(fields.get("EndTime")),
            preempt_time=parse_time(fields.get("PreemptTime")),
            limit_s=parse_duration(fields.get("TimeLimit")),
            partition=fields.get("Partition", ""),
            fields=fields,
        )

    @classmethod
    def from_squeue(cls, text: str, *, job_id: int | None = None) -> JobRecord:
        """Reads what ``squeue`` says in this module's format, which is less; times in UTC.

        Args:
            text: the answer, a line for each component or element, as for `from_scontrol`.
            job_id: number of the job that is wanted; None: the first.

        Raises:
            SlurmError: there is no such line.
        """
        lines = [line.split("|") for line in text.splitlines() if line]
        parts = next((parts for parts in lines if job_id is None or parts[0] == str(job_id)), [])
        if len(parts) != 6 or not parts[1]:
            which = "a job" if job_id is None else f"job {job_id}"
            raise SlurmError(
                f"squeue said {text.strip()[:200]!r}; expected a line of six fields for {which}."
            )
        parts = parts[1:]
        start, end, limit_s = parse_time(parts[1]), parse_time(parts[2]), parse_duration(parts[3])
        planned = None if start is None or limit_s is None else start + limit_s
        # A preemption moves the end and leaves the limit; minutes, as limits are rounded and changed.
        moved = parts[0] == "RUNNING" and planned is not None and end is not None and planned - end > 60.0
        return cls(
            state=parts[0].upper(),
            reason=parts[4] or "None",
            start_time=start,
            end_time=end,
            limit_s=limit_s,
            preempt_time=end if moved else None,
        )


NO_SUCH_JOB = "Invalid job id specified"
"""What Slurm's commands say of a job that the controller has never known, or has forgotten."""

_SQUEUE_FORMAT = "%A|%T|%S|%e|%l|%r"


class SlurmControl:
    """The controller, seen from a process of a job.

    Args:
        environ: of the job; `PATH` says where the commands are, ``SLURM_CONF`` which cluster this is.
        timeout_s: how long one command may take, in seconds.
        run: starts a command, as ``subprocess.run`` does.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        timeout_s: float = 10.0,
        run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
    ) -> None:
        # Times in the one format that is read here, and in a zone without an hour that comes twice.
        self._environ = {**environ, "SLURM_TIME_FORMAT": "standard", "TZ": "UTC0"}
        # An empty part of a PATH would be the working directory.
        self._path = ":".join(filter(None, [environ.get("PATH"), _USUAL_PLACES]))
        self._timeout_s = timeout_s
        self._run = run

    def has(self, command: str) -> bool:
        """Says whether a command of Slurm is installed here."""
        return shutil.which(command, path=self._path) is not None

    def ask(self, command: str, *arguments: str) -> str:
        """What a command prints.

        Args:
            command: name of the command, such as ``scontrol``.
            *arguments: what it is called with.

        Raises:
            SlurmError: it is not installed, did not answer in time, or failed; the message has its words.
        """
        program = shutil.which(command, path=self._path)
        if program is None:
            raise SlurmError(
                f"{command} is not installed here (searched in {self._path}).",
                hint="in a container, bind Slurm's commands, its configuration and munge's socket into it",
            )
        words = " ".join([command, *arguments])
        try:
            done = self._run(
                [*_UNDISTURBED, program, *arguments],
                env=self._environ,
                timeout=self._timeout_s,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SlurmError(f"`{words}` did not answer within {self._timeout_s:g} s.") from error
        except OSError as error:
            raise SlurmError(f"`{words}` could not be started: {error}.") from error
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())
            raise SlurmError(f"`{words}` left with {done.returncode}: {said[:_MOST_SAID]}")
        return done.stdout

    def job(self, job_id: int) -> JobRecord:
        """What is known about a job, from ``scontrol``, or from ``squeue`` where ``scontrol`` is of no use.

        Args:
            job_id: number of the job.

        Raises:
            SlurmError: neither answers, or ``scontrol`` not in time.
        """
        try:
            said = self.ask("scontrol", "show", "job", "-o", str(job_id))
            return JobRecord.from_scontrol(said, job_id=job_id)
        except SlurmError as error:
            # Who does not answer scontrol in time does not answer squeue either.
            is_final = isinstance(error.__cause__, subprocess.TimeoutExpired) or NO_SUCH_JOB in str(error)
            if is_final or not self.has("squeue"):
                raise
        said = self.ask("squeue", "--noheader", f"--jobs={job_id}", f"--format={_SQUEUE_FORMAT}")
        return JobRecord.from_squeue(said, job_id=job_id)

    def requeue(self, job: str) -> None:
        """Puts a job back into the queue; Slurm ends this run of it.

        Args:
            job: number of the job, or ``12_3`` for an element of an array.

        Raises:
            SlurmError: Slurm refused, or could not be asked.
        """
        self.ask("scontrol", "requeue", job)


def parse_fields(text: str) -> dict[str, str]:
    """The ``Name=value`` fields of ``scontrol show``; of a name that occurs twice, the first."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(text):
        fields.setdefault(name, value)
    return fields


def parse_time(text: str | None) -> float | None:
    """A time in UTC as Slurm prints it, in seconds since the epoch; None if it names none."""
    match = _TIME.fullmatch(text or "")
    try:
        return None if match is None else float(calendar.timegm(tuple(map(int, match.groups()))))
    except ValueError:
        return None  # such as the 0th of a month


def parse_duration(text: str | None) -> float | None:
    """``1-02:03:04``, ``02:03:04`` or ``3:04`` in seconds; None for ``UNLIMITED`` and the like."""
    match = _DURATION.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def jobs_in(text: str) -> list[tuple[dict[str, str], str]]:
    """Takes the answer of ``scontrol show job -o`` apart.

    Returns:
        Of each job the fields before its name, such as JobId and HetJobId, and the text after its name.
    """
    starts = list(_BEFORE_NAME.finditer(text))
    ends = [*(match.start() for match in starts[1:]), len(text)]
    jobs = []
    for match, end in zip(starts, ends, strict=False):
        named = _AFTER_NAME.search(text, match.end(), end)
        rest = text[named.start() if named else match.end() : end]
        jobs.append((parse_fields(match[0].removesuffix("JobName=")), rest))
    return jobs


def _fields_of_job(text: str, job_id: int | None) -> dict[str, str]:
    """The fields of one job without its name; empty if there is no such job."""
    for fields, rest in jobs_in(text):
        if job_id is None or int(fields["JobId"]) == job_id:
            return {**parse_fields(rest), **fields}
    return {}


def _whole_number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _flag(text: str | None) -> bool | None:
    number = _whole_number(text)
    return None if number is None else bool(number)
