"""All checks of one task, in the order in which they depend on each other."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tf_preempt._slurm import SlurmRun
from tf_preempt._slurm_control import SlurmControl
from tf_preempt._version import __version__
from tf_preempt.checkpointing.directory import WriteProof
from tf_preempt.cli.doctor import directory as directories
from tf_preempt.cli.doctor import peers, versions
from tf_preempt.cli.doctor.finding import Finding, from_error, from_values, to_values
from tf_preempt.cli.doctor.meeting import Outcome, meet
from tf_preempt.cli.doctor.place import Place, describe_place
from tf_preempt.cli.doctor.preemption import preemption_of
from tf_preempt.cli.doctor.saves import Notice, SaveTimes, check_saves, read_save_times
from tf_preempt.cli.doctor.slurm_checks import check_outside_of_job, check_slurm
from tf_preempt.cli.doctor.slurm_facts import SlurmFacts, has_slurm, read_slurm_facts
from tf_preempt.errors import SlurmError
from tf_preempt.goodput.status_file import STATUS_FILE_VARIABLE
from tf_preempt.termination.auto import Platform

__all__ = ["Examination", "Report"]

# What these platforms give unless somebody has changed it: README, "Where it runs".
_USUAL_NOTICES = {
    Platform.KUBERNETES: Notice(
        seconds=30.0,
        origin="terminationGracePeriodSeconds, by default 30 s",
        cure="set a longer terminationGracePeriodSeconds in the pod's specification",
    ),
    Platform.GCE: Notice(seconds=30.0, origin="a Spot VM's 30 s", cure="make the checkpoint smaller"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What the checks of one task have found.

    Args:
        findings: of this task, in the order in which they are shown.
        others: what the other tasks have told the first about theirs, by rank.
        is_sent: whether the first task has been told of this one's findings.
    """

    findings: tuple[Finding, ...]
    others: Mapping[int, Sequence[Finding]] = dataclasses.field(default_factory=dict)
    is_sent: bool = False


def _sent(report: Mapping[str, Any]) -> list[Finding]:
    """The findings in another task's report."""
    checks = report.get("checks")
    sent = map(from_values, checks if isinstance(checks, list) else [])
    return [finding for finding in sent if finding is not None]


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Lets a signal wait that would end the program before it knows which file it has to remove."""
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


class Examination:
    """The checks of this task.

    Args:
        place: where it runs.
        environ: its environment variables.
        directory: the checkpoint directory that was given; None if none was.
        size_mb: how much is written there, in MB.
        timeout_s: how long other tasks are waited for, in seconds.
        host: name of this machine.
        tells_all: whether the first task is told all that this one finds, not only what is wrong.
        control: the controller of Slurm, which the first task asks; None: that of the environment.
        clock: seconds since the epoch.

    Environment:
        What `find_place`, `find_directory` and `SlurmRun.from_environ` read; SLURM_OPEN_MODE;
        TF_PREEMPT_STATUS_FILE: set by ``tf-preempt run``.
    """

    def __init__(
        self,
        place: Place,
        environ: Mapping[str, str],
        *,
        directory: str | None,
        size_mb: int,
        timeout_s: float,
        host: str,
        tells_all: bool = False,
        control: SlurmControl | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._place = place
        self._environ = environ
        self._given = directory
        self._size_mb = size_mb
        self._timeout_s = timeout_s
        self._host = host
        self._tells_all = tells_all
        self._control = control or SlurmControl(environ)
        self._clock = clock
        self._versions = versions.installed_versions()
        self._found: list[Finding] = []
        # Outside of a cluster, or beside it, nobody else tells what there is to tell.
        self._speaks = place.is_first or place.rank is None

    def make(self) -> Report:
        """Makes all checks; what they write is deleted again."""
        self._found += versions.check_versions(self._versions)
        self._found += describe_place(self._place, host=self._host)
        directory, about_directory = directories.find_directory(self._given, self._environ)
        proof: WriteProof | None = None
        try:
            if directory is not None and self._speaks:
                with _signals_held():
                    proof, written = directories.prove_writable(directory)
                about_directory.append(written)
            # Before all that takes time: the others are waiting.
            outcome = self._meet(directory, proof, about_directory)
            if directory is not None and proof is not None:
                about_directory.append(self._speed(directory))
        finally:
            if proof is not None:
                about_directory += directories.remove_proof(proof, also_directory=True)
        if self._speaks:
            # Of a directory that cannot be written to enough is said by then.
            about_directory += self._notice(directory if proof is not None else None)
        return Report(
            findings=(*self._found, *about_directory),
            others={rank: _sent(report) for rank, report in outcome.reports.items()},
            is_sent=outcome.is_reported,
        )

    def _speed(self, directory: str) -> Finding:
        try:
            return directories.check_speed(directories.measure_speed(directory, self._size_mb))
        except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's
            return from_error("speed", error, hint="free some space, or choose another directory")

    # ------------------------------------------------------------------------------------- the other tasks

    def _meet(
        self, directory: str | None, proof: WriteProof | None, about_directory: list[Finding]
    ) -> Outcome:
        """Meets the other tasks, and adds what there is to say about them and the directory."""
        place = self._place
        own, alone = place.rank or 0, peers.nothing_to_reach(place)
        if alone is not None:
            self._found.append(alone)
            return Outcome()

        def report(outcome: Outcome) -> Mapping[str, Any]:
            self._found += peers.check_peers(place.members, own, outcome, timeout_s=self._timeout_s)
            seen, *written = self._look(directory, outcome)
            about_directory.extend([seen, *written])
            told = [
                finding
                for finding in (*self._found, *about_directory)
                if self._tells_all or finding.status.is_trouble
            ]
            return {"shared": seen.values["shared"], "checks": [to_values(finding) for finding in told]}

        all_versions = {"tf_preempt": __version__, **self._versions}
        greeting = {
            "host": self._host,
            "versions": all_versions,
            "proof": proof.name if proof is not None else None,
        }
        outcome = meet(place.members, own, greeting, timeout_s=self._timeout_s, report=report)
        if place.is_first:
            self._found += peers.check_peers(place.members, own, outcome, timeout_s=self._timeout_s)
            self._found += peers.check_same_versions(all_versions, place.members, outcome)
            if directory is not None and proof is not None:
                about_directory.append(
                    directories.check_shared_by_all(place.members, outcome.reports, directory)
                )
        return outcome

    def _look(self, directory: str | None, outcome: Outcome) -> list[Finding]:
        """What a task that is not the first says about the directory; how it is shared comes first."""
        first = outcome.greetings.get(0, {})
        seen = directories.look_for_proof(directory, first.get("proof"), rank=self._place.rank or 0)
        if directory is None or not seen.values["shared"]:
            return [seen]
        proof, written = directories.prove_writable(directory)
        return [seen, written, *(directories.remove_proof(proof) if proof is not None else [])]

    # ------------------------------------------------------------------------------------------ the notice

    def _notice(self, directory: str | None) -> list[Finding]:
        """Adds what Slurm does with the job, and says whether a save fits into the notice."""
        times, about_saves = read_save_times(directory) if directory is not None else (SaveTimes(), [])
        facts = self._ask_slurm()
        if facts is None and has_slurm(self._control):
            self._found.append(check_outside_of_job(self._given))
        notice, otherwise = _USUAL_NOTICES.get(self._place.platform), "how long a notice is here is not known"
        if facts is not None:
            self._found += check_slurm(
                facts,
                self._place.job,
                now=self._clock(),
                save_s=times.slowest_s,
                open_mode=self._environ.get("SLURM_OPEN_MODE"),
                directory=self._given,
                is_supervised=bool(self._environ.get(STATUS_FILE_VARIABLE)),
            )
            preemption = preemption_of(facts)
            notice = preemption.notice()
            if preemption.mode == "OFF":
                otherwise = "jobs are not preempted here, and a training leaves in time before the time limit"
        if directory is not None:
            about_saves.append(check_saves(times, notice, otherwise=otherwise))
        return about_saves

    def _ask_slurm(self) -> SlurmFacts | None:
        """The controller's answers; None outside of a job."""
        if self._place.platform is not Platform.SLURM:
            return None
        try:
            job_id = SlurmRun.from_environ(self._environ).job_id
        except SlurmError as error:
            return SlurmFacts(problems=(error,))
        return read_slurm_facts(self._control, job_id)
