"""The handler for custom training loops; an existing program changes one import."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tf_preempt.checkpointing.arguments import (
    OnPreemption,
    check_max_to_keep,
    check_on_preemption,
    raises_on_preemption,
)
from tf_preempt.checkpointing.cadence import Cadence, SaveEvery
from tf_preempt.checkpointing.cluster import check_not_alone_of_several, cluster_of_resolver
from tf_preempt.checkpointing.given_checkpoint import checkpoint_and_committer, holds_iterators, opening
from tf_preempt.checkpointing.kept_variables import variables_kept_by
from tf_preempt.checkpointing.loop_functions import traced_functions_of
from tf_preempt.checkpointing.own_state import OwnState
from tf_preempt.checkpointing.random_state import set_random_state, take_random_state
from tf_preempt.checkpointing.replica_parts import untracked_variables
from tf_preempt.checkpointing.restoring import Restored
from tf_preempt.checkpointing.saving import Snapshot
from tf_preempt.checkpointing.session import SessionOptions, TrainingSession, store_for
from tf_preempt.checkpointing.startup import BOUND
from tf_preempt.checkpointing.step_randomness import functions_in, warn_of_random_ops
from tf_preempt.checkpointing.tracked_iterators import RestoredPlaces, TrackedIterators
from tf_preempt.checkpointing.unsaved_variables import MOST_FUNCTIONS, UnsavedVariables
from tf_preempt.checkpointing.worker_part import WorkerPart
from tf_preempt.errors import ConfigError
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.input import expect_checkpoints
from tf_preempt.termination.config import TerminationConfig

_log = logging.getLogger("tf_preempt")
_T = TypeVar("_T")
_HINT = (
    "give them, or what they belong to, to the checkpoint: "
    "tf.train.Checkpoint(model=model, optimizer=optimizer, counter=counter, mean=metric.variables)"
)


class PreemptionCheckpointHandler:
    """Saves on notice and at a cadence, and resumes a custom loop at the right step.

    Takes what ``tf.distribute.experimental.PreemptionCheckpointHandler`` takes, in the same order; use it in
    the same places.  `steps` and `track` make the resume exact.  All workers construct one, with the same
    arguments, after the strategy and after the objects that the checkpoint holds.

    Example:
        >>> handler = tf_preempt.PreemptionCheckpointHandler(resolver, manager)
        >>> iterator = handler.track(iter(strategy.experimental_distribute_dataset(dataset)))
        >>> with handler.watch_preemption_scope():
        ...     for _ in handler.steps(10_000):
        ...         handler.run(train_step, next(iterator))

    Args:
        cluster_resolver: describes the cluster; None: one worker.
        checkpoint_or_checkpoint_manager: a ``tf.train.Checkpoint`` or a ``tf.train.CheckpointManager``.  A
            manager's directory, `checkpoint_name` and `max_to_keep` are taken over; its own methods are not
            called, because it would delete an old checkpoint before the new one is committed.
        checkpoint_dir: where checkpoints go; for a ``tf.train.Checkpoint`` only.
        termination_config: what counts as a notice and how to leave; ours or TensorFlow's.
        save_every: as for `tf_preempt.callbacks.PreemptionCheckpoint`, without ``"epoch"``.
        max_to_keep: how many checkpoints stay; None: all, or the manager's limit.
        on_preemption: as for `tf_preempt.callbacks.PreemptionCheckpoint`, without ``"stop"``.
        verbose: as for `tf_preempt.callbacks.PreemptionCheckpoint`.
        environ: the environment that is read.

    Raises:
        ConfigError: an argument has a value that it cannot have.
        DirectoryNotGivenError: a ``tf.train.Checkpoint`` without any directory.
        UnsupportedStrategyError: the cluster has parameter servers; or this is one of several workers, and
            the resolver says that it is alone.
        TfPreemptError: see `TrainingSession.start`: directory or checkpoint are not as they have to be.

    Environment:
        TF_PREEMPT_DIR, AIP_CHECKPOINT_DIR, TF_PREEMPT_DIR_OVERRIDE, TF_PREEMPT_STATUS_FILE,
        TF_PREEMPT_STEP_FILE, TF_CONFIG, TF_DETERMINISTIC_OPS: as for
        `tf_preempt.callbacks.PreemptionCheckpoint`.

    References:
        https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/PreemptionCheckpointHandler
    """

    def __init__(
        self,
        cluster_resolver: Any,
        checkpoint_or_checkpoint_manager: Any,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        termination_config: Any = None,
        *,
        save_every: SaveEvery = "auto",
        max_to_keep: int | None = None,
        on_preemption: OnPreemption = None,
        verbose: int = 1,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        cadence = Cadence.parse(save_every)
        if cadence.kind == "epoch":
            raise ConfigError(
                "save_every='epoch': a custom loop has no epochs that the handler could see.",
                hint="give the number of steps of an epoch",
            )
        check_max_to_keep(max_to_keep)
        check_on_preemption(on_preemption, can_stop=False)
        cluster = cluster_of_resolver(cluster_resolver)
        check_not_alone_of_several(cluster, "cluster_resolver", cluster_resolver, environ)
        checkpoint, committer = checkpoint_and_committer(
            checkpoint_or_checkpoint_manager,
            checkpoint_dir,
            max_to_keep,
            environ,
            cluster,
            store_for(cluster),
        )
        config = TerminationConfig.from_any(termination_config)
        self._save_fn = config.save_fn
        self._save_arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        if config.save_fn is not None:
            config = dataclasses.replace(config, save_fn=self._save_as_the_program_does)
        options = SessionOptions(
            config=config,
            cadence=cadence,
            adopt=True,
            raise_on_preemption=raises_on_preemption(on_preemption),
            verbose=verbose,
            opening=opening(checkpoint_or_checkpoint_manager, checkpoint_dir, environ),
            environ=environ,
        )
        expect_checkpoints()
        self._steps = 0
        self._counts_turns = False
        self._said_ignored = False
        self._looked_at: list[Any] = []
        self._known_steps: dict[int, Any] = {}  # functions that need no more looks, by `id`
        self._finished = False
        # Before the start, which adds a counter of TensorFlow's to the checkpoint.
        self._own_state = OwnState(checkpoint)
        self._iterators = TrackedIterators(cluster.workers)
        self._unsaved = UnsavedVariables(
            lambda: variables_kept_by(checkpoint, known=untracked_variables(checkpoint)),
            others=self._iterators.data_variables.handles,
            hint=_HINT,
        )
        self._make_session = functools.partial(
            TrainingSession,
            checkpoint,
            committer,
            cluster,
            save_on_all_workers=self._own_state.is_read_by_all,
        )
        self._options = options
        self._session = self._make_session(options)
        restored = self._session.start()
        self._steps = self._session.adopted_steps
        self._is_as_read = restored is not None or self._session.has_adopted
        self._looked_for_iterators = restored is None or restored.manifest.step == 0
        self._holds_iterators = holds_iterators(checkpoint)
        if restored is not None:
            try:
                self._go_on_from(restored)
            except BaseException:
                self.close()
                raise

    def _go_on_from(self, restored: Restored) -> None:
        """Restores what only this worker has, and lets `track` do it with iterators."""
        part = self._own_state.part_from(restored)
        is_of_others = bool(restored.of_others)
        bound = restored.manifest.resume.get(BOUND, {})
        self._steps = restored.manifest.step
        self._iterators.expect(RestoredPlaces(part=part, bound=bound, from_other_workers=is_of_others))
        self._own_state.restore(part, from_other_workers=is_of_others)
        set_random_state(part.values["random"])

    # ------------------------------------------------------------------------------------ the loop

    @property
    def total_run_calls(self) -> int:
        """Steps done since training began, over all incarnations."""
        return self._steps

    def steps(self, total: int) -> Iterator[int]:
        """The indices of the steps that are left of `total`: all of them, or from the restored one on.

        What a turn of the loop does belongs to its step: a save lies between two turns, so that what comes
        after `run` (logging, metrics) is neither lost nor done twice.

        Args:
            total: steps of the whole training, counted from its very beginning.

        Yields:
            The index of the step to do, from 0.

        Raises:
            SystemExit, Preempted, CheckpointWriteError: see `run`.
        """
        self._counts_turns = True
        try:
            while self._steps < total:
                yield self._steps
                self._look_at_loop(sys._getframe(1))
                self._count_step()
        finally:
            self._counts_turns = False

    def run(self, distributed_train_function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Calls the function; outside of `steps` also counts a step and saves if it is time.

        It saves before it calls the function, as TensorFlow's handler does: what the program does after `run`
        belongs to the step.  With an iterator that `track` has been given it saves after that, because the
        program has taken the data of the next step by then; use `steps` where it does both.

        Args:
            distributed_train_function: one step of training; it calls ``strategy.run``.
            *args: for the function.
            **kwargs: for the function.

        Returns:
            What the function returned.

        Raises:
            SystemExit: after the save on a notice, with the platform's restart code; also when another
                worker was lost.
            Preempted: in its place, in a notebook or with ``on_preemption="raise"``.
            CheckpointWriteError: a save failed; the checkpoints before it are untouched.
        """
        key = getattr(distributed_train_function, "__code__", distributed_train_function)
        is_turn, saves_after = self._counts_turns, bool(self._iterators)
        if not (is_turn or saves_after):
            self._boundary()
        with self._session.guard():
            if id(key) in self._known_steps:
                result = distributed_train_function(*args, **kwargs)
            else:
                result = self._run_watched(key, distributed_train_function, args, kwargs)
        if not is_turn:
            self._count_step(saves=saves_after)
        return result

    def _run_watched(
        self, key: Any, function: Callable[..., _T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _T:
        """The first executions of a function: looks for random ops, and for variables in no checkpoint.

        Args:
            key: of the function: a lambda may be another object in each step.
            function: to be called.
            args: for the function.
            kwargs: for the function.
        """
        execution = self._unsaved.execution(
            key,
            lambda: functions_in(function),
            (args, kwargs),
            partly_eager=not _tf_internals.is_tf_function(function),
        )
        with execution:
            result = function(*args, **kwargs)
        if key not in self._looked_at and len(self._looked_at) < MOST_FUNCTIONS:
            self._looked_at.append(key)
            warn_of_random_ops(functions_in(function))
        if self._unsaved.knows(key):
            self._known_steps[id(key)] = key
        return result

    def _look_at_loop(self, frame: types.FrameType) -> None:
        """Looks for the functions of a loop that gives none to `run`, after its first step."""
        if self._looked_at:
            return
        self._looked_at.append(None)
        functions = traced_functions_of(frame)
        warn_of_random_ops(functions)
        self._unsaved.look_at(functions)

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Counts a step and saves if it is time; for loops that call neither `run` nor `steps`.

        Args:
            *args: for the `save_fn` of the `TerminationConfig`; without one they are not used.
            **kwargs: likewise.

        Raises:
            SystemExit, Preempted, CheckpointWriteError: see `run`.
        """
        self._save_arguments = (args, kwargs)
        if (args or kwargs) and self._save_fn is None and not self._said_ignored:
            self._said_ignored = True
            _log.warning(
                "save_checkpoint_if_preempted takes no options for the save; %s is ignored.", (args, kwargs)
            )
        self._look_at_loop(sys._getframe(1))
        self._count_step()

    def track(self, iterator: Any, name: str | None = None) -> Any:
        """Saves this iterator's position with every checkpoint, and restores it now if there is one.

        Where TensorFlow cannot save the state of the pipeline (a Python generator, a stateful random op), the
        elements that are taken are counted, and taken again after a resume; one warning says so.  Track such
        an iterator before anything is taken from it: it is put at its beginning.

        Args:
            iterator: a ``tf.data.Iterator`` or the iterator of a distributed data set.
            name: what it is called in checkpoints; None: by the order of the calls.  Track the iterator of a
                new epoch under the name of the one before.

        Returns:
            The iterator.

        Raises:
            UnsupportedStrategyError: the iterator is of a kind whose position cannot be saved.
            ConfigError: a data set of `tf_preempt.data` has ``options.experimental_symbolic_checkpoint``.
            CheckpointMismatchError: a data set of `tf_preempt.data` has another length, batch size or seed
                than when the checkpoint was written; elements that are to be taken again are not there;
                another number of workers wrote the checkpoint, and this one cannot go on with the iterator;
                or as many did, with other numbers of replicas.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        return self._iterators.track(iterator, name)

    def save(self) -> None:
        """Saves and commits now; all workers have to call it after the same step.

        Raises:
            CheckpointWriteError: it could not be written or committed.
            SystemExit: another worker was lost.
        """
        self._session.save_now(self._capture, reason="save()")

    @contextlib.contextmanager
    def watch_preemption_scope(self) -> Iterator[None]:
        """Training happens in this block: a lost worker ends in a restart, and the end is committed.

        It can be entered again, as in each epoch; each end is committed.

        Raises:
            SystemExit: another worker was lost.
            CheckpointWriteError: the last checkpoint could not be written.
        """
        if self._finished:
            self._finished = False
            self._session = self._make_session(dataclasses.replace(self._options, verbose=0, opening=None))
            self._session.start()  # reads what was committed at the end of the block before
        try:
            with self._session.guard():
                yield
        except BaseException:
            self.close()
            raise
        self.finish()

    def finish(self) -> None:
        """Training is over: commits its end and closes.  Leaving `watch_preemption_scope` does it too.

        Raises:
            CheckpointWriteError: the last checkpoint could not be written.
        """
        if not self._finished and not self._session.is_closed:
            self._finished = True
            self._session.finish(self._capture)

    def close(self) -> None:
        """Gives back threads, signal handlers and the directory, without a save; twice is fine."""
        self._session.close()

    # ------------------------------------------------------------------------------------- the inside

    def _count_step(self, *, saves: bool = True) -> None:
        self._warn_if_nothing_is_tracked()
        self._steps += 1
        self._is_as_read = False
        if saves:
            self._boundary()

    def _boundary(self) -> None:
        self._session.boundary(self._capture, step=self._steps, unchanged=self._is_as_read)

    def _save_as_the_program_does(self) -> Any:
        """Calls the program's `save_fn` with what it has given `save_checkpoint_if_preempted`."""
        args, kwargs = self._save_arguments
        return self._save_fn(*args, **kwargs) if self._save_fn is not None else None

    def _warn_if_nothing_is_tracked(self) -> None:
        """Warns at the first boundary of a resumed run: what it was to track, it has tracked by then."""
        if self._looked_for_iterators:
            return
        self._looked_for_iterators = True
        if not self._iterators and not self._holds_iterators:
            _log.warning(
                "The run goes on after step %d, and no data iterator is tracked: data that the program takes "
                "from an iterator comes from its beginning again.\n"
                "HINT: iterator = handler.track(iter(dataset)) before the loop. A program that makes its "
                "data from the number of the step can ignore this.",
                self._steps,
            )

    def _capture(self) -> Snapshot:
        self._unsaved.warn_of_changes()
        own_tensors, own_values = self._own_state.take()
        tensors, values = self._iterators.take()
        return Snapshot(
            step=self._steps,
            resume={
                "phase": "finished" if self._finished else "train",
                "step": self._steps,
                BOUND: self._bound_to_workers(),
            },
            part=WorkerPart(
                tensors=own_tensors | tensors,
                values={"random": take_random_state()} | own_values | values,
            ),
        )

    def _bound_to_workers(self) -> dict[str, str]:
        """With which data no other number of workers can go on, and why."""
        if self._holds_iterators:
            return {"": "the checkpoint object holds an iterator"}
        if not self._iterators:
            return {"": "no data iterator is tracked"}
        return self._iterators.bound
