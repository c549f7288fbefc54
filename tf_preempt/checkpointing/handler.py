"""The handler for custom training loops; an existing program changes one import."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import tensorflow as tf

from tf_preempt.checkpointing import replica_parts
from tf_preempt.checkpointing.any_workers import check_replicas
from tf_preempt.checkpointing.arguments import (
    OnPreemption,
    check_max_to_keep,
    check_on_preemption,
    raises_on_preemption,
)
from tf_preempt.checkpointing.cadence import Cadence, SaveEvery
from tf_preempt.checkpointing.cluster import check_not_alone_of_several, cluster_of_resolver
from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.data_randomness import (
    describe_outside,
    warn_of_lost_cache,
    warn_of_unseeded_order,
)
from tf_preempt.checkpointing.data_variables import DataVariables
from tf_preempt.checkpointing.directory import directory_news, resolve_directory
from tf_preempt.checkpointing.generators import FAMILY, Generators
from tf_preempt.checkpointing.iterator_state import set_position, take_position
from tf_preempt.checkpointing.kept_variables import variables_kept_by
from tf_preempt.checkpointing.loop_functions import traced_functions_of
from tf_preempt.checkpointing.merging import Component, Way
from tf_preempt.checkpointing.new_positions import NewPositions
from tf_preempt.checkpointing.random_state import set_random_state, take_random_state
from tf_preempt.checkpointing.replay import ReplayedIterator, warn_of_replay
from tf_preempt.checkpointing.restoring import Restored
from tf_preempt.checkpointing.saving import Snapshot
from tf_preempt.checkpointing.session import SessionOptions, TrainingSession
from tf_preempt.checkpointing.startup import BOUND
from tf_preempt.checkpointing.step_counts import StepCounts
from tf_preempt.checkpointing.step_randomness import functions_in, warn_of_random_ops
from tf_preempt.checkpointing.unsaved_variables import MOST_FUNCTIONS, UnsavedVariables
from tf_preempt.checkpointing.worker_part import WorkerPart
from tf_preempt.errors import CheckpointMismatchError, ConfigError
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.input import expect_checkpoints
from tf_preempt.termination.config import TerminationConfig

_log = logging.getLogger("tf_preempt")
_T = TypeVar("_T")
_SYNC_ON_READ = "sync_on_read/"
_REPLAYED = "replayed"
_STEPS = "steps_taken"
_REPLICAS = "replicas"
_FAMILIES = (_SYNC_ON_READ, *replica_parts.FAMILIES, FAMILY)
_WAYS: dict[Any, Way] = {
    tf.VariableAggregation.SUM: "sum",
    tf.VariableAggregation.MEAN: "mean",
}
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
        on_preemption: as for `tf_preempt.callbacks.PreemptionCheckpoint`.
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
        check_on_preemption(on_preemption)
        cluster = cluster_of_resolver(cluster_resolver)
        check_not_alone_of_several(cluster, "cluster_resolver", cluster_resolver, environ)
        checkpoint, committer = _checkpoint_and_committer(
            checkpoint_or_checkpoint_manager, checkpoint_dir, max_to_keep, environ
        )
        options = SessionOptions(
            config=TerminationConfig.from_any(termination_config),
            cadence=cadence,
            adopt=True,
            raise_on_preemption=raises_on_preemption(on_preemption),
            verbose=verbose,
            opening=_opening(checkpoint_or_checkpoint_manager, checkpoint_dir, environ),
            environ=environ,
        )
        expect_checkpoints()
        self._steps = 0
        self._counts_turns = False
        self._said_ignored = False
        self._looked_at: list[Any] = []
        self._finished = False
        self._tracked: dict[str, Any] = {}
        self._new_positions = NewPositions()
        self._step_counts = StepCounts(cluster.workers)
        self._replayed: dict[str, ReplayedIterator] = {}
        self._restored = WorkerPart()
        self._data_variables = DataVariables()
        self._sync_on_read = _sync_on_read_parts(checkpoint)
        untracked = replica_parts.untracked_variables(checkpoint)
        # Before the start, which adds a counter of TensorFlow's to the checkpoint.
        self._replica_parts, parts_of_several = (
            [
                *replica_parts.replica_parts(
                    replica_parts.written_by_replicas(checkpoint, also_by_one=also_by_one)
                ),
                *replica_parts.replica_parts(untracked, kept_nowhere_else=True),
            ]
            for also_by_one in (False, True)
        )
        self._generators = Generators(checkpoint, known=untracked)
        self._unsaved = UnsavedVariables(
            lambda: variables_kept_by(checkpoint, known=replica_parts.untracked_variables(checkpoint)),
            others=self._data_variables.handles,
            hint=_HINT,
        )
        self._session = TrainingSession(
            checkpoint,
            committer,
            cluster,
            options,
            save_on_all_workers=bool(self._sync_on_read),
        )
        restored = self._session.start()
        self._was_restored = restored is not None
        self._looked_for_iterators = restored is None or restored.manifest.step == 0
        self._holds_iterators = _holds_iterators(checkpoint)
        self._from_other_workers = restored is not None and bool(restored.of_others)
        self._restored_bound = {} if restored is None else restored.manifest.resume.get(BOUND, {})
        if restored is not None:
            parts = parts_of_several if self._from_other_workers else self._replica_parts
            self._steps = restored.manifest.step
            try:
                self._restored = self._merged(restored, parts).part
                self._data_variables.expect(self._restored.tensors)
                self._restore_local(self._restored, parts)
            except BaseException:
                self.close()
                raise

    def _merged(self, restored: Restored, parts: list[replica_parts.ReplicaPart]) -> Restored:
        """What was restored, with this worker's part, also where another number of workers wrote it."""
        for other in restored.of_others:
            checksums = other.values.get("replica_checksums", {})
            replica_parts.check_as_many(parts, [*other.tensors, *checksums])
        metrics = [
            Component(name=name, variable=variable, way=_WAYS.get(variable.aggregation, "first"))
            for name, variable in self._sync_on_read.items()
        ]
        others = [*replica_parts.components(parts), *self._generators.components()]
        return restored.merged(lambda: [*metrics, *others], _FAMILIES)

    def _restore_local(self, part: WorkerPart, parts: list[replica_parts.ReplicaPart]) -> None:
        """Restores what only this worker has, iterators excepted: `track` does them."""
        saved = {name for name in part.tensors if name.startswith(_SYNC_ON_READ)}
        # Where there was one replica, or is one now, TensorFlow gives back the sum that the checkpoint has.
        if saved != set(self._sync_on_read) and not self._from_other_workers:
            raise _other_sync_on_read(len(saved), len(self._sync_on_read))
        for name in saved & set(self._sync_on_read):
            self._sync_on_read[name].assign(part.tensors[name])
        replica_parts.check(parts, part.tensors)
        replica_parts.restore(parts, part.tensors, part.values.get("replica_checksums", {}))
        self._generators.restore(part.tensors)
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
        function = distributed_train_function
        execution = self._unsaved.execution(
            getattr(function, "__code__", function),
            lambda: functions_in(function),
            (args, kwargs),
            partly_eager=not _tf_internals.is_tf_function(function),
        )
        with self._session.guard(), execution:
            result = function(*args, **kwargs)
        self._look_at_step(function)
        if not self._counts_turns:
            self._count_step()
        return result

    def _look_at_step(self, function: Callable[..., Any]) -> None:
        """Looks for random ops, once at each function; a lambda may be another object in each step."""
        key = getattr(function, "__code__", function)
        if key not in self._looked_at and len(self._looked_at) < MOST_FUNCTIONS:
            self._looked_at.append(key)
            warn_of_random_ops(functions_in(function))

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
            *args: accepted for TensorFlow's handler's sake, and not used.
            **kwargs: likewise.

        Raises:
            SystemExit, Preempted, CheckpointWriteError: see `run`.
        """
        if (args or kwargs) and not self._said_ignored:
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
        key = name if name is not None else str(len(self._tracked))
        place = f"iterator/{key}"
        is_new = key not in self._tracked
        steps = self._restored.values.get(_STEPS, {}).get(key)
        if is_new and not self._from_other_workers:
            saved_replicas = self._restored.values.get(_REPLICAS, {}).get(key)
            check_replicas(saved_replicas, _tf_internals.elements_per_step(iterator), iterator=key)
        if self._tracked.get(key) is not iterator:
            has_position = is_new and f"{place}/0" in self._restored.tensors
            with_count = (steps is not None) if has_position else None
            self._step_counts.watch(iterator, key, saved_with_count=with_count)
            self._new_positions.keep(iterator, key)
        if is_new and self._from_other_workers and steps is not None:
            beginning = self._new_positions.resume(key, self._restored.tensors)
            _log.info("Data iterator %r goes to where another number of workers was: step %d.", key, steps)
            self._step_counts.go_ahead(iterator, key, steps, self._restored.tensors, beginning=beginning)
        elif is_new and set_position(iterator, place, self._restored.tensors):
            self._new_positions.restore_seeds(iterator, key, self._restored.tensors, place=place)
            beginning = self._new_positions.resume(key, self._restored.tensors)
            self._step_counts.resume(
                key,
                steps or 0,
                self._restored.tensors,
                beginning=beginning,
                was_bound=key in self._restored_bound,
            )
            _log.info("Data iterator %r goes on where it was.", key)
        elif self._tracked.get(key) is iterator:
            return iterator
        elif take_position(iterator, place) is None:
            self._track_by_count(iterator, key, is_new=is_new)
        else:
            self._replayed.pop(key, None)
            if is_new and self._was_restored:
                self._warn_of_no_position(key)
        if is_new and key not in self._replayed:
            warn_of_unseeded_order(iterator, f"tracked {key!r}")
            warn_of_lost_cache(iterator, f"tracked {key!r}")
        self._tracked[key] = iterator
        self._data_variables.look_at(iterator, key)
        return iterator

    def _track_by_count(self, iterator: Any, key: str, *, is_new: bool) -> None:
        """Counts what is taken, as the state cannot be saved; takes it again if a checkpoint says so."""
        outside = describe_outside(iterator)  # as the program made it: what counts is another function
        replayed = self._replayed[key] = ReplayedIterator(iterator, f"iterator/{key}")
        if not is_new:
            return
        warn_of_replay(key, outside)
        taken = self._restored.values.get(_REPLAYED, {}).get(key)
        if taken is not None:
            _log.info("Data iterator %r: %s elements are taken again and dropped.", key, taken)
            replayed.replay(taken, self._restored.tensors)
        elif self._was_restored:
            self._warn_of_no_position(key)

    def _warn_of_no_position(self, key: str) -> None:
        _log.warning(
            "The checkpoint has no position of a data iterator %r: it begins at its beginning. "
            "HINT: track the same iterators in the same order, or under the same names; the one of a new "
            "epoch under the name of the one before.",
            key,
        )

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

        Raises:
            SystemExit: another worker was lost.
            CheckpointWriteError: the last checkpoint could not be written.
        """
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

    def _count_step(self) -> None:
        self._warn_if_nothing_is_tracked()
        self._steps += 1
        self._session.boundary(self._capture, step=self._steps)

    def _warn_if_nothing_is_tracked(self) -> None:
        """Warns at the first boundary of a resumed run: what it was to track, it has tracked by then."""
        if self._looked_for_iterators:
            return
        self._looked_for_iterators = True
        if not self._tracked and not self._holds_iterators:
            _log.warning(
                "The run goes on after step %d, and no data iterator is tracked: data that the program takes "
                "from an iterator comes from its beginning again.\n"
                "HINT: iterator = handler.track(iter(dataset)) before the loop. A program that makes its "
                "data from the number of the step can ignore this.",
                self._steps,
            )

    def _capture(self) -> Snapshot:
        self._unsaved.warn_of_changes()
        # TensorFlow saves the sum of such a variable and restores an equal share to each replica.
        tensors = {name: variable.read_value() for name, variable in self._sync_on_read.items()}
        replica_tensors, checksums = replica_parts.take(self._replica_parts)
        tensors |= replica_tensors | self._generators.take() | self._new_positions.tensors
        (taken, positions), data_variables = self._data_variables.take_with(self._take_iterators)
        tensors |= positions | data_variables
        return Snapshot(
            step=self._steps,
            resume={
                "phase": "finished" if self._finished else "train",
                "step": self._steps,
                BOUND: self._bound_to_workers(),
            },
            part=WorkerPart(
                tensors=tensors,
                values={
                    "random": take_random_state(),
                    "replica_checksums": checksums,
                    _REPLAYED: taken,
                    _STEPS: self._step_counts.take(),
                    _REPLICAS: {
                        key: _tf_internals.elements_per_step(one) for key, one in self._tracked.items()
                    },
                },
            ),
        )

    def _bound_to_workers(self) -> dict[str, str]:
        """With which data no other number of workers can go on, and why."""
        if self._holds_iterators:
            return {"": "the checkpoint object holds an iterator"}
        if not self._tracked:
            return {"": "no data iterator is tracked"}
        return self._step_counts.bound

    def _take_iterators(self) -> tuple[dict[str, list[int]], dict[str, Any]]:
        """How many elements were taken from iterators to be replayed, and the positions of the others."""
        taken: dict[str, list[int]] = {}
        tensors: dict[str, Any] = {}
        for key, iterator in self._tracked.items():
            if key in self._replayed:
                taken[key], replayed_tensors = self._replayed[key].take()
                tensors |= replayed_tensors
            else:
                tensors |= take_position(iterator, f"iterator/{key}") or {}
        return taken, tensors


def _checkpoint_and_committer(
    given: Any, directory: str | os.PathLike[str] | None, max_to_keep: int | None, environ: Mapping[str, str]
) -> tuple[Any, Committer]:
    """The checkpoint, and a committer for it with a manager of our own.

    Raises:
        ConfigError: neither a Checkpoint nor a CheckpointManager, or a manager and a directory.
    """
    name = "ckpt"
    if isinstance(given, tf.train.CheckpointManager):
        if directory is not None:
            raise ConfigError(
                f"checkpoint_dir={directory!r} was given beside a CheckpointManager, which has a directory "
                f"({given.directory}).",
                hint="leave checkpoint_dir out",
            )
        checkpoint, directory = given.checkpoint, given.directory
        name, limit = _tf_internals.manager_settings(given)
        max_to_keep = limit if max_to_keep is None else max_to_keep
        _log.info(
            "The manager's limit (max_to_keep=%s) is taken over; %s checkpoints stay in %s after a commit.",
            limit,
            "all" if max_to_keep is None else max_to_keep,
            directory,
        )
    elif isinstance(given, tf.train.Checkpoint):
        checkpoint = given
    else:
        raise ConfigError(
            f"checkpoint_or_checkpoint_manager={given!r}: expected a tf.train.Checkpoint or a "
            "tf.train.CheckpointManager."
        )
    path = resolve_directory(directory, environ)
    manager = tf.train.CheckpointManager(checkpoint, path, max_to_keep=None, checkpoint_name=name)
    return checkpoint, Committer(manager, max_to_keep=max_to_keep, variables=[], name=name)


def _opening(given: Any, directory: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str | None:
    """What to tell the user of a directory that the environment has chosen."""
    managers = given.directory if isinstance(given, tf.train.CheckpointManager) else None
    return directory_news(managers or directory, environ)


def _holds_iterators(checkpoint: Any) -> bool:
    """Says whether the program's checkpoint saves the position of an iterator, as TensorFlow's can."""
    return any(
        isinstance(node, tf.data.Iterator) for node in tf.train.TrackableView(checkpoint).descendants()
    )


def _sync_on_read_parts(checkpoint: Any) -> dict[str, Any]:
    """This worker's parts of the checkpoint's sync-on-read variables (metrics under a strategy), by name."""
    variables = [
        node for node in replica_parts.variables_in(checkpoint) if _tf_internals.is_sync_on_read(node)
    ]
    return {
        f"{_SYNC_ON_READ}{index}/{replica}": part
        for index, variable in enumerate(variables)
        for replica, part in enumerate(_tf_internals.local_values(variable))
    }


def _other_sync_on_read(saved: int, present: int) -> CheckpointMismatchError:
    """The error where a checkpoint holds other parts of sync-on-read variables than the program has."""
    variables = "variables with synchronization=ON_READ (metrics under a strategy)"
    if saved and present:
        return CheckpointMismatchError(
            f"The checkpoint holds {saved} parts of {variables}, the program's checkpoint object {present}.",
            hint="build the checkpoint object as it was when the checkpoint was written",
        )
    if saved:
        return CheckpointMismatchError(
            f"The checkpoint was written under a strategy and holds {saved} part(s) of {variables}; the "
            "program's checkpoint object has none: without a strategy TensorFlow makes plain variables.",
            hint="make the same variables, in the scope of the strategy that wrote the checkpoint",
        )
    return CheckpointMismatchError(
        f"The program's checkpoint object has {present} part(s) of {variables}; the checkpoint, which was "
        "perhaps written without a strategy, has none.",
        hint="make the same variables, and as then: without a strategy if there was none",
    )
