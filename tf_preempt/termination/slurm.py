"""Leaving a Slurm job well: why it has to be left, and what makes it come back.

Slurm requeues a job by itself only when it ends the job: a program that has saved and leaves politely while
the grace of a preemption runs turns the job into a COMPLETED or FAILED one (22.05; newer versions requeue
it), and a time limit is never followed by a requeue.  So, after the commit, the chief asks the controller why
the program has to go, has the job requeued where that is what its owner wants, and tells the other workers.

====================  ====================================================================================
cause                 what follows
====================  ====================================================================================
preempted             requeued; if Slurm refuses or cannot be asked, the workers stay until Slurm ends
                      them, because that is what makes Slurm requeue the job
time limit            requeued; if that is refused, the program leaves with the restart code
a failed node         Slurm requeues; else as after a time limit
another signal        likewise: ``--signal`` before the time limit, ``scancel --signal`` by somebody
a lost worker         likewise, unless ``tf-preempt run`` restarts it within the job
cancelled             not requeued: its owner does not want it any more
requeued already      nothing more
====================  ====================================================================================

Never requeued: a job that is not a batch job, one that was submitted with ``--no-requeue``, one that got
nowhere several times in a row.  `decide` is the pure part, `SlurmExit` asks and acts.

References:
    scontrol(1), sbatch(1), https://slurm.schedmd.com/preempt.html (seen 2026-11); what Slurm 22.05.8 answers
    in each case: ``tests/termination/test_slurm.py``.
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from tf_preempt._slurm import SlurmRun
from tf_preempt._slurm_control import NO_SUCH_JOB, JobRecord, SlurmControl
from tf_preempt.errors import SlurmError
from tf_preempt.termination.exit_codes import CANCELLED, PERMANENT, RESTART_LOCAL
from tf_preempt.termination.requeue_record import History, RequeueRecord
from tf_preempt.termination.slurm_options import SlurmOptions

__all__ = [
    "TIME_LIMIT_SOURCE",
    "Action",
    "Cause",
    "SlurmExit",
    "Verdict",
    "cause_of",
    "decide",
    "settle_preemption",
    "without_training",
]

_log = logging.getLogger("tf_preempt")

TIME_LIMIT_SOURCE = "Slurm's time limit"
"""`TerminationNotice.source` of notices that come from the time limit."""
# A signal that comes so long before the end is `--signal`'s: it is sent up to a minute early.
_SIGNAL_BEFORE_LIMIT_S = 600.0
# Slurm itself needs clocks that agree; this much apart is none of its runs' ends.
_CLOCKS_APART_S = 5.0
# While a job ends, Slurm 22.05 does not tell one from the other.
_OVER = "a job that its owner cancels, or whose batch script has ended, is not requeued"
_ENDED_BY_OWNER = frozenset({"CANCELLED", "REVOKED", "DEADLINE"})
_QUEUED_AGAIN = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_RUNS_ON = frozenset({"RUNNING", "CONFIGURING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"})


class Cause(str, enum.Enum):
    """Why a program has to leave its job."""

    PREEMPTED = "preempted"
    TIME_LIMIT = "its time limit"
    CANCELLED = "cancelled"
    REQUEUED = "requeued already"
    NODE_FAILURE = "a node failed"
    SIGNAL = "a notice while the job runs on"
    LOST_WORKER = "a worker was lost"
    UNKNOWN = "Slurm could not be asked why"

    def __str__(self) -> str:
        return self.value


class Action(str, enum.Enum):
    """What is done about it."""

    REQUEUE = "requeue"
    STAY = "stay"
    LEAVE = "leave"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a program does after its last commit in this run of the job.

    Args:
        action: `Action.REQUEUE`: the job is requeued, then all leave; `Action.STAY`: wait for Slurm to end
            the job; `Action.LEAVE`: leave.
        cause: why it has to go.
        reason: why this action, for people.
        exit_code: the status to leave with.
    """

    action: Action
    cause: Cause
    reason: str
    exit_code: int = RESTART_LOCAL

    @property
    def runs_again(self) -> bool:
        """Whether the job waits in the queue for its next run."""
        return self.action is Action.REQUEUE or self.cause is Cause.REQUEUED

    def __str__(self) -> str:
        return f"{self.cause}: {self.reason}"


def cause_of(
    record: JobRecord | None, run: SlurmRun, *, source: str, now: float, is_lost: bool = False
) -> Cause:
    """Says why a program has to leave, from what the controller knows about its job.

    Args:
        record: the controller's answer after the notice; None if there is none.
        run: which run of the job the program belongs to.
        source: `TerminationNotice.source` of the notice.
        now: seconds since the epoch.
        is_lost: there was no notice, but another worker is gone.
    """
    if record is None:
        if is_lost:
            return Cause.LOST_WORKER
        near = run.end_time is not None and run.end_time - now <= _SIGNAL_BEFORE_LIMIT_S
        return Cause.TIME_LIMIT if near or source == TIME_LIMIT_SOURCE else Cause.UNKNOWN
    states = set(record.state.replace("+", ",").split(","))
    # While a job ends, Slurm 22.05 says COMPLETING and no more; reason and number of restarts tell why.
    if record.restarts is not None and record.restarts > run.restart_count:
        return Cause.REQUEUED
    if states & _ENDED_BY_OWNER:
        return Cause.CANCELLED
    if "TIMEOUT" in states or record.reason == "TimeLimit":
        return Cause.TIME_LIMIT
    if "NODE_FAIL" in states or record.reason == "NodeDown":
        return Cause.NODE_FAILURE
    if "PREEMPTED" in states or (record.preempt_time is not None and not _was_ended_in_grace(record, states)):
        return Cause.PREEMPTED
    if not states & _RUNS_ON:
        # squeue tells no number of restarts, but like scontrol an end that lies in the next run.
        is_next = record.end_time is not None and record.end_time > now + _CLOCKS_APART_S
        return Cause.REQUEUED if is_next or states & _QUEUED_AGAIN else Cause.CANCELLED
    if is_lost:
        return Cause.LOST_WORKER
    near = record.end_time is not None and record.end_time - now <= _SIGNAL_BEFORE_LIMIT_S
    return Cause.TIME_LIMIT if near or source == TIME_LIMIT_SOURCE else Cause.SIGNAL


def _was_ended_in_grace(record: JobRecord, states: set[str]) -> bool:
    """Whether a preempted job was cancelled: Slurm sets the preemption time anew when it ends one itself."""
    if states & _RUNS_ON or record.end_time is None or record.preempt_time is None:
        return False
    return record.end_time - record.preempt_time > 1.0


def decide(
    cause: Cause,
    record: JobRecord | None,
    options: SlurmOptions,
    *,
    requeues: int = 0,
    no_progress: int = 0,
    is_supervised: bool = False,
) -> Verdict:
    """Says what a program does that has saved and has to leave.

    Args:
        cause: why it has to.
        record: what the controller knows about the job; None if it could not be asked.
        options: what the user wants.
        requeues: how often this package has requeued the job before.
        no_progress: how many runs in a row, up to this one, have saved nothing new.
        is_supervised: ``tf-preempt run`` restarts the program within the job.
    """

    def leave(reason: str, exit_code: int = RESTART_LOCAL) -> Verdict:
        return Verdict(action=Action.LEAVE, cause=cause, reason=reason, exit_code=exit_code)

    if cause is Cause.REQUEUED:
        return leave("nothing is left to do")
    if cause is Cause.CANCELLED:
        return leave(_OVER, CANCELLED)
    if cause is Cause.LOST_WORKER and is_supervised:
        return leave("tf-preempt run restarts the program within the job")
    if options.requeue == "never":
        return leave("not requeued, as the program wants it (SlurmOptions.requeue='never')")
    if record is not None and record.is_batch is False:
        return leave("not requeued, as Slurm requeues only what sbatch has started; start it again yourself")
    if record is not None and record.may_requeue is False:
        why = "not requeued, as it was submitted with --no-requeue (or JobRequeue=0 is set)"
        unless = "unless tf-preempt run goes on with it, " if is_supervised else ""
        return leave(f"{why}; {unless}submit it again to go on from the last commit, if there is one")
    if no_progress >= options.max_no_progress:
        times = f"{no_progress} runs in a row" if no_progress > 1 else "this run"
        cure = "a smaller save_every" + (" or a longer limit" if cause is Cause.TIME_LIMIT else "")
        return leave(f"not requeued, as {times} saved nothing new; {cure} may help", PERMANENT)
    if options.max_requeues is not None and requeues >= options.max_requeues:
        return leave(f"not requeued, as all {options.max_requeues} requeues are used up", PERMANENT)
    return Verdict(action=Action.REQUEUE, cause=cause, reason="the job is requeued")


def without_training(cause: Cause, when: str) -> Verdict:
    """What a program does that has nothing to save and whose job is not in the grace of a preemption.

    Only a preemption is answered with a requeue then: after other notices nobody would count how often that
    came to nothing.

    Args:
        cause: why it has to leave.
        when: the moment, in words: ``before the training began``.
    """
    if cause is Cause.REQUEUED:
        reason = "Slurm runs it again by itself"
    elif cause is Cause.CANCELLED:
        reason = _OVER
    elif cause is Cause.TIME_LIMIT:
        reason = f"the notice came {when}, so that it is not requeued; ask for more time (#SBATCH --time)"
    else:
        reason = f"it came {when}, so that the job is not requeued"
    return Verdict(action=Action.LEAVE, cause=cause, reason=reason)


def after_refusal(verdict: Verdict, words: str) -> Verdict:
    """What is done instead where the job could not be requeued.

    Staying makes Slurm requeue a preempted job; it would only waste the rest of a time limit.
    """
    first = words.splitlines()[0].rstrip(".")
    if verdict.cause in (Cause.PREEMPTED, Cause.UNKNOWN):
        reason = f"the job could not be requeued from here ({first}), so the program waits for Slurm to do it"
        return dataclasses.replace(verdict, action=Action.STAY, reason=reason)
    reason = f"not requeued ({first}); the batch script may do it on exit status {verdict.exit_code}"
    return dataclasses.replace(verdict, action=Action.LEAVE, reason=reason)


class SlurmExit:
    """Asks the controller after a notice, decides, and has the job requeued.

    Args:
        run: which run of which job this is.
        control: the controller.
        options: what the user wants.
        requeue_record: how earlier runs of the job ended; None: that does not count.
        is_supervised: ``tf-preempt run`` restarts the program within the job.
        clock: seconds since the epoch.
        pause: waits so many seconds between two tries.
    """

    def __init__(
        self,
        run: SlurmRun,
        control: SlurmControl,
        options: SlurmOptions,
        requeue_record: RequeueRecord | None,
        *,
        is_supervised: bool,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._run = run
        self._control = control
        self._options = options
        self._requeue_record = requeue_record
        self._is_supervised = is_supervised
        self._clock = clock
        self._pause = pause
        self._has_no_such_job = False

    def settle(
        self, *, source: str, incarnation: int | None, made_progress: bool | None, is_lost: bool = False
    ) -> Verdict:
        """Decides and acts; to be called on one worker, after the commit and before any worker leaves.

        Args:
            source: of the notice.
            incarnation: number of this life of the program; None: it ends before it has one.
            made_progress: whether it has committed something new; None: it had no chance to.
            is_lost: there was no notice, but another worker is gone.
        """
        record = self._ask()
        cause = cause_of(record, self._run, source=source, now=self._clock(), is_lost=is_lost)
        if cause is Cause.TIME_LIMIT and made_progress is None:
            made_progress = False  # a limit that ends before the first step does so in every run
        if cause is Cause.REQUEUED or self._requeue_record is None:
            history = History()  # somebody else has counted this life, or wants the next one in any case
        else:
            history = self._requeue_record.add(
                run=self._run.restart_count, incarnation=incarnation, made_progress=made_progress
            )
        return self._act(
            decide(
                cause,
                record,
                self._options,
                requeues=history.requeues,
                no_progress=history.no_progress,
                is_supervised=self._is_supervised,
            )
        )

    def settle_preemption(self, *, when: str | None = None) -> Verdict | None:
        """Has a preempted job requeued whose program does not train, or has ended before it could do that.

        After any other notice the job is not requeued: nobody would count how often that came to nothing.

        Args:
            when: the moment, in words; that nothing is done, and why, is said then, too.  None: somebody
                else says it, as a supervisor's program does.

        Returns:
            What was decided; None if the job is neither preempted nor requeued already, and `when` is not
            given.  Where Slurm cannot be asked, the job may as well be cancelled: then it is left to Slurm,
            which requeues it or not.
        """
        record = self._ask()
        if record is None and self._has_no_such_job:
            return None  # the shell of a job that is over
        cause = cause_of(record, self._run, source="", now=self._clock())
        if record is None:
            words = "Slurm requeues a preempted job that it ends itself; another SIGTERM ends the program"
            return self._act(Verdict(action=Action.STAY, cause=Cause.UNKNOWN, reason=words))
        if cause is Cause.PREEMPTED:
            return self._act(decide(cause, record, self._options))
        if when is None:
            return without_training(cause, "") if cause is Cause.REQUEUED else None
        return self._act(without_training(cause, when))

    def _act(self, verdict: Verdict) -> Verdict:
        """Has the job requeued, if that was decided, and says what was done."""
        if verdict.action is Action.REQUEUE:
            verdict = self._requeue(verdict)
        if verdict.action is Action.REQUEUE and self._requeue_record is not None:
            self._requeue_record.count_requeue()
        _log.warning("Slurm job %s, run %d: %s.", self._run.requeue_as, self._run.restart_count, verdict)
        return verdict

    def _ask(
        self, tries: Sequence[float] = (0.0, 0.5, 2.0), *, level: int = logging.WARNING
    ) -> JobRecord | None:
        """The controller's answer; None if it gives none."""
        problem = ""
        for pause_s in tries:
            if pause_s:
                self._pause(pause_s)
            try:
                return self._control.job(self._run.job_id)
            except SlurmError as error:
                problem = str(error).splitlines()[0]
            self._has_no_such_job = NO_SUCH_JOB in problem
            if self._has_no_such_job or not (self._control.has("scontrol") or self._control.has("squeue")):
                break
        _log.log(level, "Slurm could not be asked about job %d: %s", self._run.job_id, problem)
        return None

    def _requeue(self, verdict: Verdict) -> Verdict:
        try:
            self._control.requeue(self._run.requeue_as)
        except SlurmError as error:
            refusal = error
        else:
            return verdict
        # Somebody else may have been faster by a moment: then the job waits in the queue already.
        # Fewer tries, and no second warning: other workers wait, and it may be the same failure.
        record = self._ask((0.0, 0.5), level=logging.DEBUG)
        again = cause_of(record, self._run, source="", now=self._clock()) if record else None
        if again is Cause.REQUEUED:
            return dataclasses.replace(
                verdict, action=Action.LEAVE, cause=again, reason="nothing is left to do"
            )
        return after_refusal(verdict, str(refusal))


def settle_preemption(
    environ: Mapping[str, str], options: SlurmOptions, *, when: str | None = None
) -> Verdict | None:
    """Has a preempted job requeued whose program does not train; `SlurmExit.settle_preemption` says how.

    Args:
        environ: the environment variables of one of the job's tasks.
        options: what the user wants.
        when: see there.

    Raises:
        SlurmError: nothing says which job it is.
    """
    run = SlurmRun.from_environ(environ)
    slurm = SlurmExit(run, SlurmControl(environ), options, None, is_supervised=True)
    return slurm.settle_preemption(when=when)
