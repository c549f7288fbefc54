"""One training under protection: from the common start to the last commit, or to leaving on a notice.

`TrainingSession` ties the parts together and is what the handler (custom loops) and the Keras callback both
drive: they say where boundaries are and what has to be saved there, it says when.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from tf_preempt import errors
from tf_preempt.checkpointing.agreement import Agreement, Decision
from tf_preempt.checkpointing.asking import Asking
from tf_preempt.checkpointing.commit_thread import CommitThread, PendingCommit
from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.departure import Departure
from tf_preempt.checkpointing.determinism import warn_if_ops_may_differ
from tf_preempt.checkpointing.directory import DirectoryClaim
from tf_preempt.checkpointing.key_value import CoordinationServiceStore, KeyValueStore, LocalStore
from tf_preempt.checkpointing.last_words import is_loss
from tf_preempt.checkpointing.leaving import Guard, Leaving
from tf_preempt.checkpointing.news import say
from tf_preempt.checkpointing.restoring import NothingGoodLeftError, Restored, Restorer
from tf_preempt.checkpointing.rounds import Request
from tf_preempt.checkpointing.saving import Saver, Snapshot
from tf_preempt.checkpointing.session_options import SessionOptions
from tf_preempt.checkpointing.session_record import SessionRecord
from tf_preempt.checkpointing.startup import Cluster, Plan, begin_together
from tf_preempt.termination import signals, standby
from tf_preempt.termination.auto import detect_platform, make_watchers
from tf_preempt.termination.cloud import Firmware, detect_cloud
from tf_preempt.termination.exit_codes import INTERRUPTED, PERMANENT
from tf_preempt.termination.notice import TerminationNotice
from tf_preempt.termination.shortest_notice import shortest_notice
from tf_preempt.termination.slurm import Verdict
from tf_preempt.termination.watcher import TerminationMonitor

__all__ = ["SessionOptions", "TrainingSession", "store_for"]

_log = logging.getLogger("tf_preempt")
_ordinals = itertools.count()
_unanswered: list[TerminationNotice] = []
"""Notices that came when a training was complete; the next one of the program answers them."""
_LOST_WAIT_S = 1.0  # who leaves has waited for its own commit; others wait for workers that may be gone


def store_for(cluster: Cluster) -> KeyValueStore:
    """The store that this cluster's workers share."""
    return LocalStore() if cluster.workers == 1 else CoordinationServiceStore()


class TrainingSession:
    """Protects one training.

    Args:
        checkpoint: ``tf.train.Checkpoint`` of all variables that are alike on all workers.
        committer: writes and reads its directory.
        cluster: who takes part.
        options: see `SessionOptions`.
        save_on_all_workers: the checkpoint holds sync-on-read variables, so that reading them is a collective
            in which every worker has to take part.
        store: shared by all workers; None: the one that suits the cluster.
    """

    def __init__(
        self,
        checkpoint: Any,
        committer: Committer,
        cluster: Cluster,
        options: SessionOptions,
        *,
        save_on_all_workers: bool = False,
        store: KeyValueStore | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._committer = committer
        self._cluster = cluster
        self._options = options
        self._saver = Saver(
            checkpoint, committer, cluster, fit=options.fit, on_all_workers=save_on_all_workers
        )
        self._store = store if store is not None else store_for(cluster)
        self._prefix = f"tf_preempt/{next(_ordinals)}"
        self._platform = detect_platform(options.environ)
        self._leaving = Leaving(self._platform, options.config, raise_instead=options.raise_on_preemption)
        self._departure = Departure(
            self._platform,
            options.environ,
            options.config.slurm,
            cluster,
            self._store,
            prefix=self._prefix,
            directory=committer.directory,
            program_goes_on=options.raise_on_preemption,
        )
        self._guard = Guard(self._leave_if_lost)
        self._agreement = Agreement(
            self._store,
            worker=cluster.worker,
            workers=cluster.workers,
            prefix=self._prefix,
            on_claim=lambda request: self._asking.on_claim(request),
            on_poll=lambda: self._asking.on_poll(),
        )
        grace_period = options.config.grace_period
        cloud = detect_cloud(options.environ, Firmware.read())
        self._asking = Asking(
            cluster,
            options.cadence,
            grace_period,
            self._agreement.request,
            at=lambda: self._agreement.at,
            shortest=shortest_notice(self._platform, cloud, options.environ, grace_period=grace_period),
        )
        self._monitor: TerminationMonitor | None = None
        self._commits: CommitThread | None = None
        self._claim: DirectoryClaim | None = None
        self._record = SessionRecord(committer.directory, cluster, fit=options.fit, environ=options.environ)
        self._number = 0
        self._saved_step = 0
        self._has_adopted = False
        self._notice: TerminationNotice | None = None
        self._is_interrupted = self._gives_up = False
        self._leaves = False
        self._closed = False

    # ------------------------------------------------------------------------------------- begin, end

    @property
    def incarnation(self) -> int:
        """Number of this life of the program."""
        return self._record.incarnation

    @property
    def workers(self) -> int:
        """How many workers train together."""
        return self._cluster.workers

    @property
    def is_closed(self) -> bool:
        """Says whether the session is over."""
        return self._closed

    @property
    def has_adopted(self) -> bool:
        """Says whether the variables have the values of a plain TensorFlow checkpoint."""
        return self._has_adopted

    @property
    def adopted_steps(self) -> int:
        """The steps of which that checkpoint tells; 0 if it tells of none."""
        return self._saved_step if self._has_adopted else 0

    def start(self) -> Restored | None:
        """Begins together with the other workers and restores the newest checkpoint.

        Returns:
            What was restored, or None in a new directory.

        Raises:
            TfPreemptError: the directory, the checkpoint or a worker is not as it has to be; on all workers
                alike, with nothing left behind.
        """
        self._claim = DirectoryClaim(self._committer.directory)
        try:
            warn_if_ops_may_differ()
            if self._options.opening:
                self._say(self._options.opening)
            return self._start_together()
        except errors.WorkerLostError as error:
            self._leave_without(error)
        except BaseException:
            self.close()
            raise

    def _start_together(self) -> Restored | None:
        plan = begin_together(
            self._committer, self._store, self._cluster, prefix=self._prefix, fit=self._options.fit
        )
        self._begin(plan)
        return self._restore(plan)

    def _begin(self, plan: Plan) -> None:
        self._number = plan.first_number
        self._record.begin(plan.incarnation)
        self._commits = CommitThread(
            self._committer,
            self._store,
            self._cluster,
            prefix=self._prefix,
            incarnation=plan.incarnation,
            on_commit=self._record.committed,
            on_end=lambda number, is_committed: self._asking.committed(number, committed=is_committed),
        )
        self._commits.start()
        self._agreement.start()
        watchers = make_watchers(
            self._options.config,
            self._platform,
            environ=self._options.environ,
            is_chief=self._cluster.is_chief,
            save_seconds=lambda: self._asking.save_seconds,
        )
        self._monitor = TerminationMonitor(watchers, self._on_notice)
        self._monitor.start()
        standby.training_begins(self)
        for notice in _unanswered[:1]:
            self._on_notice(notice)
        _unanswered.clear()
        atexit.register(self._tell_of_last_error)
        self._record.event(
            "start", workers=self._cluster.workers, platform=str(self._platform), pid=os.getpid()
        )

    def _restore(self, plan: Plan) -> Restored | None:
        restorer = Restorer(
            self._checkpoint,
            self._committer,
            self._store,
            self._cluster,
            prefix=self._prefix,
            fit=self._options.fit,
        )
        try:
            restored = restorer.restore(plan)
        except NothingGoodLeftError as error:
            self._leave(f"{error} A new start begins afresh.", self._settled("a damaged checkpoint"))
        if restored is not None:
            self._note_restored(restored)
            return restored
        if plan.adopt and self._options.adopt:
            self._committer.restore_variables(self._checkpoint, plan.adopt)
            self._has_adopted, self._saved_step = True, self._committer.run_calls(plan.adopt)
            self._say(
                f"{self._committer.directory} holds TensorFlow checkpoints without manifests: {plan.adopt} "
                f"is adopted. Steps count from {self._saved_step}."
            )
        self._record.status(reason="start")
        return None

    def _note_restored(self, restored: Restored) -> None:
        manifest = restored.manifest
        self._saved_step = manifest.step
        self._record.restored(manifest, restored.seconds)
        self._asking.expect(manifest.seconds)
        self._say(f"Restored step {manifest.step} from {self._committer.directory}/{manifest.prefix}.")
        if restored.of_others and self._cluster.is_chief:
            _log.warning(
                "%s was written by %d worker(s), and this job has %d: the same examples come in the same "
                "batches, but what replicas add up is rounded otherwise, and what each draws at random or "
                "counts by itself (dropout, BatchNormalization) differs: not bit-identical.\n"
                "HINT: start %d worker(s) for an exact resume.",
                manifest.prefix,
                manifest.workers,
                self._cluster.workers,
                manifest.workers,
            )

    def read_again(self, prefix: str) -> None:
        """Gives the variables once more the values of the checkpoint that was restored.

        Args:
            prefix: its name.

        Raises:
            TfPreemptError: it cannot be read any more.
        """
        self._committer.restore_variables(self._checkpoint, prefix)

    def _say(self, message: str) -> None:
        """Tells the user good news, on one worker of all."""
        if self._cluster.is_chief and self._options.verbose:
            say(message)
        else:
            _log.info("%s", message)

    def finish(self, capture: Callable[[], Snapshot] | None) -> None:
        """Ends the training: the last commit is made, and no worker closes before it exists.

        Args:
            capture: gives what has to be saved; None if nothing has changed since the last commit.

        Raises:
            CheckpointWriteError: the last checkpoint could not be written or committed.
            SystemExit: another worker was lost.
        """
        try:
            with self.guard():
                decision = self._agreement.finish()
                if capture is not None:
                    self._save(capture(), reason="finished").wait(self._options.commit_timeout_s)
                self._departure.let_chief_leave_last(self._number)
            self._record.event("finish", step=self._saved_step)
        finally:
            self.close()
        if decision is not None and decision.request.kind != "save":
            _log.warning("Training was complete when %s came; it is saved.", decision.request.reason)
        if self._notice is None:
            return
        if self._departure.is_needed and self._notice.source == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)  # once more, for those who see to the job from now on
        else:
            _unanswered.append(self._notice)

    def close(self, *, commit_wait_s: float = 10.0) -> None:
        """Gives back threads, signal handlers and the directory; calling it twice is fine.

        Args:
            commit_wait_s: how long a commit that is under way may take to end, in seconds.
        """
        if self._closed:
            return
        self._closed = True
        self._hand_sigterm_over()
        self._record.tell_of_error(sys.exc_info()[1])
        atexit.unregister(self._tell_of_last_error)
        # While Slurm ends the job it sends SIGTERM again and again; who leaves already must not die of it.
        if self._monitor is not None and not (self._leaves and self._departure.is_needed):
            self._monitor.close()
        self._agreement.close()
        if self._commits is not None:
            self._commits.close(commit_wait_s)
        self._record.close()
        if self._claim is not None:
            self._claim.release()

    def _hand_sigterm_over(self) -> None:
        """The program may go on for long without training, and its job has to come back all the same."""
        standby.training_ends(self)
        is_ours = self._departure.is_needed and not self._options.config.leaves_sigterm_alone
        if is_ours and self._monitor is not None and not self._leaves:
            standby.begin(self._departure.after_training)

    # --------------------------------------------------------------------------------------- boundaries

    def boundary(
        self,
        capture: Callable[[], Snapshot],
        *,
        step: int,
        new_epoch: bool = False,
        unchanged: bool = False,
    ) -> None:
        """A place at which training could be saved: called by all workers in the same sequence.

        Args:
            capture: gives what has to be saved here; called only if something is saved.
            step: training steps done.
            new_epoch: the first boundary of an epoch.
            unchanged: nothing was executed since the restore, so there is nothing to save.

        Raises:
            CheckpointWriteError: a periodic save failed in the background.
            Preempted: after the save on a notice, if asked for in place of `SystemExit`.
            SystemExit: likewise, with the platform's restart code; also when another worker was lost.
        """
        self._record.step(step)
        try:
            decision = self._agreement.boundary()
            if decision is None and self._commits is not None:
                self._commits.check()
        except Exception as error:
            self._leave_if_lost(error)
            raise
        if decision is not None and unchanged:
            self._act_unchanged(decision)
        elif decision is not None:
            self._act(decision, capture)
        elif self._options.cadence.due_at_boundary(
            step=step, saved_step=self._saved_step, new_epoch=new_epoch
        ):
            self._save(capture(), reason=self._options.cadence.describe())

    def save_now(self, capture: Callable[[], Snapshot], *, reason: str) -> None:
        """Saves and commits here; all workers have to call it at the same boundary.

        Raises:
            CheckpointWriteError: it could not be written or committed.
            SystemExit: another worker was lost.
        """
        with self.guard():
            self._save(capture(), reason=reason).wait(self._options.commit_timeout_s)

    def _act_unchanged(self, decision: Decision) -> None:
        """Acts where the restored checkpoint already holds all there is.

        Variables that the program makes in its first step (slots of an optimizer of its own) do not exist
        yet; a checkpoint written now would lack them.
        """
        if decision.request.kind == "leave":
            where = " before the first step; the restored step stands"
            self._leave_on(decision.request, where, is_saved=True, had_a_chance=False)

    def _act(self, decision: Decision, capture: Callable[[], Snapshot]) -> None:
        request = decision.request
        if request.kind == "save":
            self._save(capture(), reason=request.reason)
            return
        snapshot = capture()
        where = {key: snapshot.resume.get(key) for key in ("epoch", "phase", "step")}
        self._record.event(
            "agreed", boundary=decision.boundary, global_step=snapshot.step, reason=request.reason, **where
        )
        reason = f"notice: {request.reason} on worker {request.worker}"
        where_saved, is_saved = f"step {snapshot.step} is saved in {self._committer.directory}", True
        try:
            pending = self._save(snapshot, reason=reason, save_fn=self._options.config.save_fn)
            if request.kind == "notice":
                return  # the worker with the notice asks again when its time is nearly over
            pending.wait(self._options.commit_timeout_s)
        except (errors.CheckpointWriteError, errors.CoordinationError) as error:
            _log.error("%s", error)
            where_saved = f"step {snapshot.step} could not be committed, the checkpoint before it counts"
            is_saved = False
            if request.kind == "notice":
                return
        self._leave_on(request, f"; {where_saved}", is_saved=is_saved)

    def _leave_on(
        self, request: Request, where: str, *, is_saved: bool, had_a_chance: bool = True
    ) -> NoReturn:
        """Leaves on a notice, or on Ctrl-C, which asks nobody for a restart."""
        told = f"notice: {request.reason} on worker {request.worker}"
        if self._options.config.is_interrupt(request.reason):
            self._leaves = True
            self._departure.let_chief_leave_last(self._number)
            self._leave(f"Interrupted ({told}){where}.", None, is_saved=is_saved, exit_code=INTERRUPTED)
        verdict = self._settled(request.reason, had_a_chance=had_a_chance)
        self._leave(f"Preempted ({told}){where}.", verdict, is_saved=is_saved)

    def _settled(self, source: str, *, had_a_chance: bool = True) -> Verdict | None:
        """Settles with the scheduler, before the first worker leaves, what becomes of the job."""
        self._leaves = True
        verdict = self._departure.after_commit(
            self._number, source=source, incarnation=self.incarnation, had_a_chance=had_a_chance
        )
        self._departure.let_chief_leave_last(self._number)
        return verdict

    def _leave(
        self, message: str, verdict: Verdict | None, *, is_saved: bool = False, exit_code: int | None = None
    ) -> NoReturn:
        """Ends this process's part, for a restart unless there is a status for something else.

        Where all is saved, the machine may be gone from here on.
        """
        self._leaves = True
        wants_restart = exit_code is None
        if exit_code is None:
            exit_code = self._leaving.exit_code if verdict is None else verdict.exit_code
        self._record.event("exit", code=exit_code)
        self.close(commit_wait_s=_LOST_WAIT_S)
        if is_saved and self._monitor is not None and not self._options.raise_on_preemption:
            self._monitor.tell_saved()
        self._departure.wait_if_told_to_stay(verdict)
        self._leaving.leave(message, exit_code, wants_restart=wants_restart)

    # ------------------------------------------------------------------------------------------- saving

    def _save(
        self, snapshot: Snapshot, *, reason: str, save_fn: Callable[..., Any] | None = None
    ) -> PendingCommit:
        if self._commits is None:
            raise errors.CheckpointWriteError("The session was not started.")
        number = self._number
        self._number += 1
        try:
            written = self._saver.write(number, snapshot, reason=reason, save_fn=save_fn)
        except errors.TfPreemptError as error:
            self._commits.give_up(number, error)
            raise
        self._asking.saved(number, written.seconds)
        pending = self._commits.hand_in(number, written.part_files, written.save)
        self._saved_step = snapshot.step
        self._record.event(
            "save",
            checkpoint=written.prefix,
            step=snapshot.step,
            seconds=round(written.seconds, 4),
            reason=reason,
        )
        return pending

    # ------------------------------------------------------------------------------- background threads

    def _on_notice(self, notice: TerminationNotice) -> None:
        if self._leaves:
            self._departure.notice_while_leaving(notice)
            return
        if not self._options.is_active():
            self._pass_on(notice)
            return
        is_interrupt = self._options.config.is_interrupt(notice.source)
        if is_interrupt and self._is_interrupted:
            if not self._gives_up:
                self._give_up_saving()
            return
        self._notice = notice
        left = notice.remaining_s()
        _log.warning("Notice on worker %d: %s (%s).", self._cluster.worker, notice.source, notice.reason)
        self._record.event(
            "notice", source=notice.source, reason=notice.reason, deadline_s=left, boundary=self._agreement.at
        )
        if is_interrupt:
            self._is_interrupted = True
            _log.warning("Training is saved and then left; Ctrl-C again leaves it unsaved.")
            self._asking.on_interrupt(notice)
        else:
            self._asking.on_notice(notice)

    def _give_up_saving(self) -> None:
        """Ctrl-C again: whoever pressed it does not want to wait for a step or a save."""
        self._gives_up = True
        _log.warning("Ctrl-C again: training is left unsaved; the last checkpoint that was committed counts.")
        signals.pass_on(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    def _pass_on(self, notice: TerminationNotice) -> None:
        """Training was left by an exception that nobody told us of: the signal has its old meaning again."""
        _log.warning("%s came after training was left; it takes its usual course.", notice.source)
        if notice.source == "SIGTERM":
            self._departure.after_training()
        self.close()
        if notice.source in signal.Signals.__members__:
            os.kill(os.getpid(), signal.Signals[notice.source])

    # ------------------------------------------------------------------------------------- lost workers

    def guard(self) -> Guard:
        """A block that is left with the restart code when another worker is lost while it runs.

        Raises:
            SystemExit: another worker, or the chief with the coordination service, is gone.
        """
        return self._guard

    def _leave_if_lost(self, error: BaseException | None) -> None:
        if isinstance(error, Exception) and is_loss(error) and self._cluster.workers > 1:
            self._leave_without(error)

    def _leave_without(self, error: Exception) -> NoReturn:
        """Leaves because another worker is lost."""
        standby.training_begins(self)
        reason = self._record.describe_loss(error)
        self._record.event("peer_lost", reason=reason)
        told = self._record.error_of_another_worker()
        if told is not None:
            self._record.event("exit", code=PERMANENT)
            self.close(commit_wait_s=_LOST_WAIT_S)
            self._leaving.leave_for_good(f"The training ends, because {told}.")
        _log.error("Another worker is lost (%s); leaving for a restart.", reason)
        self._leaves = True
        verdict = self._departure.after_loss(incarnation=self.incarnation if self._record.has_begun else None)
        self._leave("A worker was lost; a new start goes on from the last commit, if any.", verdict)

    def _tell_of_last_error(self) -> None:
        """At the end of the process: training was left by an exception that nobody caught."""
        self._record.tell_of_error(getattr(sys, "last_value", None))
