"""What becomes of the job when its program leaves: settled once, before the first worker leaves.

On Slurm the program that leaves decides whether its job comes back (`tf_preempt.termination.slurm`).  One
worker does that, the others hear of it: who left before might make Slurm end the step while the chief is
still asking.  After a loss the keys may be gone with the chief, so that every survivor may have to act; those
that are not the chief wait a moment, in which Slurm usually ends them.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Mapping

from tf_preempt._slurm import SlurmRun
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.checkpointing.key_value import KeyValueStore
from tf_preempt.checkpointing.manifest import committed_in
from tf_preempt.checkpointing.startup import Cluster
from tf_preempt.errors import CoordinationError
from tf_preempt.goodput.status_file import STATUS_FILE_VARIABLE
from tf_preempt.termination.auto import Platform
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.requeue_record import RequeueRecord
from tf_preempt.termination.slurm import Action, Cause, SlurmExit, Verdict
from tf_preempt.termination.slurm_options import SlurmOptions
from tf_preempt.termination.standby import AFTER_TRAINING, OTHER_TASKS_WAIT_S

_log = logging.getLogger("tf_preempt")
# The controller is asked up to three times, 10 s each, for the job and for the requeue.
_VERDICT_WAIT_S = 75.0
_SURVIVORS_WAIT_S = 1.0
_SURVIVORS_STAGGER_S = 0.1
_LONGEST_SURVIVORS_WAIT_S = 5.0


class Departure:
    """Settles with the scheduler, on behalf of all workers, what comes after the last commit.

    Args:
        platform: where the program runs; there is something to settle on Slurm only.
        environ: the environment variables.
        options: what the user wants on Slurm.
        cluster: who takes part.
        store: shared by all workers.
        prefix: for the keys.
        directory: the checkpoint directory.
        program_goes_on: the program is told of the notice by an exception and goes on, as in a notebook: then
            its job is its own business.

    Raises:
        SlurmError: a variable of Slurm is malformed.

    Environment:
        SLURM_JOB_ID and more: see `SlurmRun`; PATH, SLURM_CONF: see `SlurmControl`.
        TF_PREEMPT_STATUS_FILE: set: ``tf-preempt run`` restarts the program when a worker is lost.
    """

    def __init__(
        self,
        platform: Platform,
        environ: Mapping[str, str],
        options: SlurmOptions,
        cluster: Cluster,
        store: KeyValueStore,
        *,
        prefix: str,
        directory: str,
        program_goes_on: bool,
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._prefix = prefix
        self._directory = directory
        self._stay_s = options.stay_s
        self._told = threading.Event()
        self._is_left_to_program = platform is Platform.SLURM and program_goes_on
        self._slurm: SlurmExit | None = None
        if platform is Platform.SLURM and options.requeue == "auto" and not program_goes_on:
            run = SlurmRun.from_environ(environ)
            self._slurm = SlurmExit(
                run,
                SlurmControl(environ),
                options,
                RequeueRecord(directory, run.requeue_as),
                is_supervised=bool(environ.get(STATUS_FILE_VARIABLE)),
            )

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to settle."""
        return self._slurm is not None

    def notice_while_leaving(self, notice: TerminationNotice) -> None:
        """Takes a notice that comes after the decision to leave.

        It tells something only where a Slurm job is ours to settle: by SIGTERM Slurm is ending the job.
        """
        if self._slurm is not None and notice.source == "SIGTERM":
            self._told.set()
        else:
            _log.info("%s came while the program leaves; it changes nothing.", notice.source)

    def after_commit(
        self, number: int, *, source: str, incarnation: int, had_a_chance: bool = True
    ) -> Verdict | None:
        """Settles it after all workers have saved; to be called by all of them.

        Args:
            number: of the checkpoint, the same on all workers.
            source: of the notice.
            incarnation: number of this life of the program.
            had_a_chance: whether it could have come further than it was; a notice may come too early.

        Returns:
            What was decided; None if there is nothing to settle.
        """
        if self._slurm is None:
            self._say_who_requeues()
            return None
        key = f"{self._prefix}/departure/{number}"
        if not self._cluster.is_chief:
            with contextlib.suppress(CoordinationError, TimeoutError):
                return _decode(self._store.get(key, _VERDICT_WAIT_S))
            return None
        verdict = self._slurm.settle(
            source=source,
            incarnation=incarnation,
            made_progress=self._made_progress(incarnation) if had_a_chance else None,
        )
        if self._cluster.workers > 1:
            try:
                self._store.set(key, _encode(verdict))
            except CoordinationError as error:
                _log.warning("The other workers cannot be told what becomes of the job: %s", error)
        return verdict

    def after_loss(self, *, incarnation: int | None) -> Verdict | None:
        """Settles it after a worker was lost; to be called by whoever notices that.

        Args:
            incarnation: number of this life of the program; None: it ends before it has one.
        """
        if self._slurm is None:
            return None
        worker = self._cluster.worker
        if worker:
            wait_s = _SURVIVORS_WAIT_S + _SURVIVORS_STAGGER_S * worker
            self._told.wait(min(wait_s, _LONGEST_SURVIVORS_WAIT_S))
        return self._slurm.settle(
            source="",
            incarnation=incarnation,
            made_progress=incarnation is not None and self._made_progress(incarnation),
            is_lost=True,
        )

    def _say_who_requeues(self) -> None:
        if self._is_left_to_program and self._cluster.is_chief:
            _log.warning(
                "The Slurm job is not requeued, because the program is told, and goes on. "
                'HINT: on_preemption="exit" has it requeued; or let the program call `scontrol requeue`.'
            )

    def _made_progress(self, incarnation: int) -> bool:
        try:
            return committed_in(self._directory, incarnation)
        except Exception as error:  # noqa: BLE001 - a URL's errors are TensorFlow's; leaving must go on
            _log.warning("It cannot be told whether anything was committed: %s", error)
            return True

    def after_training(self) -> None:
        """Has a preempted job requeued whose training is complete; returns when the process may end."""
        if self._slurm is None:
            return
        if self._cluster.is_chief:
            self.wait_if_told_to_stay(self._slurm.settle_preemption(when=AFTER_TRAINING))
        else:
            threading.Event().wait(OTHER_TASKS_WAIT_S)

    def let_chief_leave_last(self, number: int, *, timeout_s: float = 5.0) -> None:
        """Keeps the chief, in whose process the keys live, until the others have read what they need.

        Args:
            number: of the last checkpoint, the same on all workers.
            timeout_s: for how long at most, in seconds.
        """
        key = f"{self._prefix}/seen/{number}"
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(CoordinationError, TimeoutError):
            if not self._cluster.is_chief:
                self._store.set(f"{key}/{self._cluster.worker}", "1")
                return
            for worker in range(1, self._cluster.workers):
                self._store.get(f"{key}/{worker}", max(0.001, deadline - time.monotonic()))

    def wait_if_told_to_stay(self, verdict: Verdict | None) -> None:
        """Waits for Slurm to end this process, where that is what was decided; gives up after a while."""
        if verdict is None or verdict.action is not Action.STAY:
            return
        threading.Event().wait(self._stay_s)
        _log.warning(
            "Slurm has not ended this process within %.0f s. HINT: see `scontrol show job`; if the job "
            "is over, submit it again.",
            self._stay_s,
        )


def _encode(verdict: Verdict) -> str:
    return json.dumps(
        {
            "action": verdict.action.value,
            "cause": verdict.cause.value,
            "reason": verdict.reason,
            "exit_code": verdict.exit_code,
        }
    )


def _decode(text: str) -> Verdict:
    words = json.loads(text)
    return Verdict(
        action=Action(words["action"]),
        cause=Cause(words["cause"]),
        reason=words["reason"],
        exit_code=words["exit_code"],
    )
