"""One call of ``Model.fit`` under protection: where its boundaries are, what is saved, how it resumes.

The position in `fit` is a phase (training, the validation after it, over) and a step in it.  Boundaries lie
in the generators from which `fit` and `evaluate` draw their steps: all callbacks have seen the end of the
step before and none the beginning of the next.  A resumed `fit` begins at the saved epoch; its first
generator puts everything in place and goes on at the saved step, so no callback sees a step twice.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tf_preempt.callbacks import _keras_internals as keras_internals
from tf_preempt.callbacks import model_state
from tf_preempt.callbacks._keras_internals import Epochs, Step
from tf_preempt.callbacks.callback_states import CallbackStates
from tf_preempt.callbacks.data_stream import DataStream
from tf_preempt.callbacks.kept_by_fit import HINT, kept_variables
from tf_preempt.callbacks.layer_attributes import LayerAttributes
from tf_preempt.callbacks.resume_point import DataPlace, Phase, ResumePoint
from tf_preempt.checkpointing import replica_parts
from tf_preempt.checkpointing.any_workers import bound_to_workers, check_replicas, refuse_data
from tf_preempt.checkpointing.data_randomness import (
    describe_outside,
    warn_of_lost_cache,
    warn_of_unseeded_order,
)
from tf_preempt.checkpointing.data_variables import DataVariables
from tf_preempt.checkpointing.generators import FAMILY
from tf_preempt.checkpointing.iterator_state import take_position
from tf_preempt.checkpointing.merging import Component
from tf_preempt.checkpointing.random_state import set_random_state, take_random_state
from tf_preempt.checkpointing.restoring import Restored
from tf_preempt.checkpointing.saving import Snapshot
from tf_preempt.checkpointing.session import TrainingSession
from tf_preempt.checkpointing.step_randomness import warn_of_random_ops
from tf_preempt.checkpointing.unsaved_variables import UnsavedVariables
from tf_preempt.checkpointing.worker_part import WorkerPart
from tf_preempt.errors import CheckpointMismatchError, Preempted

_log = logging.getLogger("tf_preempt")
_REPLICAS = "replicas"
_TRAIN, _VALIDATE = "train_data", "validation_data"
_BOUND_BY_VALIDATION = " (another number could go on before the first validation: nothing was read yet)"


class ProtectedFit:
    """Hooks into a running `fit` between ``on_train_begin`` and ``on_train_end``.

    Args:
        model: the model that is being trained.
        session: makes the checkpoints; not started yet.
        epoch_iterator: Keras's, over the training data.
        states: of the other callbacks.
        epochs: the number of epochs that `fit` was asked for.
        reads_again: other callbacks may change any variable in beginning training or an epoch.
        stops: ends `fit` where the session raises `Preempted`.
    """

    def __init__(
        self,
        model: Any,
        session: TrainingSession,
        epoch_iterator: Any,
        states: CallbackStates,
        *,
        epochs: int,
        reads_again: bool = False,
        stops: bool = False,
    ) -> None:
        self._model = model
        self._reads_again = reads_again
        self._stops = stops
        self._stopped: Preempted | None = None
        self._end_stop: Callable[[], None] = lambda: None
        self._session = session
        self._states = states
        self._generators = model_state.generators(model)
        self._epoch_iterator = epoch_iterator
        self._thread = threading.current_thread()
        self._epochs = epochs
        # Where fit is.
        self._phase: Phase = "train"
        self._epoch = 0
        self._step = 0
        self._train_steps = 0
        self._executed = False
        self._changed = False  # something was executed since this process restored
        self._was_restored = False
        self._ended = False
        self._looked_at: set[str] = set()
        self._bound: dict[str, str] = {}
        self._from_other_workers = self._had_validation_data = False
        # Logs of the phase's last step, and of the epoch's training while its validation runs.
        self._logs: Any = {}
        self._epoch_logs: dict[str, Any] = {}
        self._epoch_was_trained = False  # by an earlier incarnation; only its validation is left
        # What is restored before the first step; and what the first validation has to do with it.
        self._resume: ResumePoint | None = None
        self._resume_validation: ResumePoint | None = None
        self._restored_part = WorkerPart()
        self._restored_prefix = ""
        self._scalars: list[tuple[Any, Any]] = []
        # Hooks.
        self._train = Epochs(epoch_iterator, self._steps_of_training)
        self._train_data = DataStream(self._train, _TRAIN)
        self._validation: Epochs | None = None
        self._validation_data: DataStream | None = None
        self._functions: dict[str, Any] = {}
        self._data_variables = DataVariables()
        self._unsaved = UnsavedVariables(
            lambda: kept_variables(model, states.callbacks), others=self._data_variables.handles, hint=HINT
        )
        self._attributes = LayerAttributes(model)
        self._get_result: Callable[[Any], Any] = lambda logs: logs

    @property
    def is_running(self) -> bool:
        """Says whether the `fit` goes on: an exception elsewhere may have ended it unseen."""
        return keras_internals.is_running(self._epoch_iterator, self._thread)

    @property
    def stopped(self) -> Preempted | None:
        """Why `fit` ends before its time; None if it does not."""
        return self._stopped

    # ------------------------------------------------------------------------------------- begin, end

    def begin(self) -> None:
        """Starts the session, restores, and hooks in.

        Raises:
            TfPreemptError: see `TrainingSession.start`.
        """
        with self._model.distribute_strategy.scope():
            restored = self._session.start()
        if restored is not None:
            self._prepare(restored)
        elif self._session.incarnation > 0:
            self._states.begin_afresh()
        self._get_result = keras_internals.override(
            self._model, "_get_metrics_result_or_logs", self._result_or_logs
        )
        self._guard_function("train_function", self._train_data)

    def _prepare(self, restored: Restored) -> None:
        resume = ResumePoint.from_json(restored.manifest.resume)
        self._from_other_workers = bool(restored.of_others)
        self._had_validation_data = resume.validate is not None
        if not self._from_other_workers:
            check_replicas(restored.part.values.get(_REPLICAS), self._replicas_here())
        restored = restored.merged(self._components, (*model_state.FAMILIES, FAMILY))
        self._was_restored = True
        self._bound = dict(resume.bound_to_workers)
        self._check_same_data(resume)
        if resume.phase != "finished":  # an epoch that is over has no use for its metrics
            model_state.check_metric_parts(self._model, restored.part.tensors)
        replica_parts.check(self._replica_parts(also_by_one=True), restored.part.tensors)
        self._resume, self._restored_part = resume, restored.part
        self._restored_prefix = restored.manifest.prefix
        self._data_variables.expect(restored.part.tensors)
        self._train_steps = restored.manifest.step
        self._scalars = model_state.scalar_values(self._model)
        self._states.begin_again()
        over = self._epochs if resume.phase == "finished" and resume.stopped else resume.epoch
        keras_internals.set_initial_epoch(self._model, over)
        if resume.phase == "finished" and over >= self._epochs:
            _log.warning("Training is complete already (%d epochs): nothing is trained.", resume.epoch)

    def _replicas_here(self) -> int:
        return int(self._model.distribute_strategy.num_replicas_in_sync) // self._session.workers

    def _components(self) -> list[Component]:
        return model_state.components(self._model) + self._generators.components()

    def _check_same_data(self, resume: ResumePoint) -> None:
        """Refuses a data set of another length: the saved place in it would mean something else.

        Raises:
            CheckpointMismatchError: an epoch has another number of batches than it had.
        """
        saved, present = resume.train.batches, self._train.counters[1]
        if resume.phase != "finished" and None not in (saved, present) and saved != present:
            others, also = "", ""
            if self._from_other_workers:
                others = " by another number of workers"
                also = (
                    "; batch_size is that of all replicas together, and the same for any number of workers: "
                    "do not multiply it by strategy.num_replicas_in_sync"
                )
            raise CheckpointMismatchError(
                f"The training data has {present} batches per epoch; when the checkpoint was written{others} "
                f"it had {saved}, and epoch {resume.epoch + 1} was interrupted in step {resume.step}.",
                hint=f"use the same data and batch size as before, or another directory{also}",
            )

    def finish(self) -> None:
        """Makes the last commit and unhooks; where `fit` was stopped, all is saved already."""
        if self._stopped is not None:
            self._end_stop()
            return
        keras_internals.set_initial_epoch(self._model, None)
        if self._resume is not None:  # no epoch was left
            # Callbacks behind ours go on to end the training: EarlyStopping puts its best weights back.
            self._restore_before_first_step(self._resume, go_on=False)
            # A later fit on the same data set goes on with the seeds that this one has left.
            iterator = self._train_data.restore(self._resume.train, self._restored_part.tensors)
            self._look_at_data(iterator, _TRAIN)
            self._restore_seeds_of_validation(self._resume)
            self._restore_last_metrics()
            self._session.finish(None)
        else:
            self._phase, self._step = "finished", 0
            self._session.finish(self._capture)
        self._ended = True
        self.release()

    def release(self) -> None:
        """Gives Keras its own methods back and closes the session; calling it twice is fine."""
        if not self._ended:
            for data in filter(None, (self._train_data, self._validation_data)):
                data.leave()
        self._train.release()
        if self._validation is not None:
            self._validation.release()
        keras_internals.end_override(self._model, "_get_metrics_result_or_logs")
        for name, function in self._functions.items():
            vars(self._model)[name] = function
        self._functions = {}
        self._session.close()

    # -------------------------------------------------------------------------- what Keras's callback sees

    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch of training begins."""
        keras_internals.set_initial_epoch(self._model, None)
        self._phase, self._epoch, self._step = "train", epoch, 0

    def on_epoch_end(self, epoch: int) -> None:
        """An epoch is over, its validation included."""
        self._phase, self._epoch, self._step = "train", epoch + 1, 0

    def on_test_begin(self) -> None:
        """The validation of an epoch begins."""
        epoch_iterator = keras_internals.eval_epoch_iterator(self._model)
        if epoch_iterator is None:
            return
        self._phase, self._step, self._logs = "validate", 0, {}
        if self._validation is None:
            self._validation = Epochs(epoch_iterator, self._steps_of_validation)
            self._validation_data = DataStream(self._validation, _VALIDATE)
            self._warn_if_shuffle_is_shared(self._validation_data)
            with self._released_on_error():
                self._restore_order_of_validation(self._validation_data)
        self._guard_function("test_function", self._validation_data)

    # ------------------------------------------------------------------------------------- generators

    def _steps_of_training(self) -> Iterator[Step]:
        """The steps of one epoch, with a boundary before each."""
        new_epoch = self._resume is None
        with self._released_on_error():
            steps = self._train.original() if new_epoch else self._remaining_steps()
        for begin, end, iterator in steps:
            self._step = begin
            self._train_data.at_step(iterator)
            if not self._executed:
                self._look_at_data(iterator, _TRAIN)
            if not self._may_go_on(new_epoch=new_epoch):
                return
            new_epoch, self._executed = False, True
            yield begin, end, iterator

    def _may_go_on(self, *, new_epoch: bool = False) -> bool:
        """A boundary; says whether the step behind it may be done, or `fit` ends here."""
        try:
            self._boundary(new_epoch=new_epoch)
        except Preempted as preempted:
            if not self._stops:
                raise
            self._stopped = preempted
            self._end_stop = keras_internals.stop_fit(self._model)
            return False
        return True

    def _boundary(self, *, new_epoch: bool = False) -> None:
        with self._released_on_error():
            self._session.boundary(
                self._capture,
                step=self._train_steps,
                new_epoch=new_epoch,
                unchanged=self._was_restored and not self._changed,
            )

    @contextlib.contextmanager
    def _released_on_error(self) -> Iterator[None]:
        """Around what may end `fit`, after which the model may be trained again in this process."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def _remaining_steps(self) -> Iterator[Step]:
        """The steps that the resumed epoch has left; puts everything in place first."""
        resume, self._resume = self._resume, None
        if resume is None:
            raise RuntimeError("There is no resume point.")
        self._resume_validation = resume
        if resume.phase == "train":
            self._train.begin_epoch()
        iterator = self._train_data.restore(resume.train, self._restored_part.tensors)
        self._look_at_data(iterator, _TRAIN)
        self._restore_before_first_step(resume)
        if resume.phase == "train":
            model_state.set_metric_parts(self._model, self._restored_part.tensors)
            self._logs = resume.logs
            return self._train.resumed(resume.step, iterator)
        self._train.keep(iterator if resume.train.kept else None)
        if resume.phase == "finished":
            return self._train.original()
        self._epoch_logs, self._epoch_was_trained = resume.epoch_logs, True
        return iter(())

    def _restore_before_first_step(self, resume: ResumePoint, *, go_on: bool = True) -> None:
        """Undoes what callbacks did in beginning training and the resumed epoch: both had begun before."""
        if self._reads_again:
            with self._model.distribute_strategy.scope():
                self._session.read_again(self._restored_prefix)
        for variable, value in self._scalars:
            variable.assign(value)
        part = self._restored_part
        checksums = part.values.get("replica_checksums", {})
        replica_parts.restore(self._replica_parts(also_by_one=True), part.tensors, checksums)
        self._restore_history(resume)
        self._states.restore(resume.callbacks, part.tensors, phase=resume.phase, go_on=go_on)
        with self._model.distribute_strategy.scope():
            self._generators.restore(part.tensors)
        set_random_state(part.values["random"])

    def _restore_seeds_of_validation(self, resume: ResumePoint) -> None:
        """Lets a later use of the validation data go on with the seeds that this `fit` has left."""
        if resume.validate is None:
            return
        epoch_iterator = keras_internals.new_eval_epoch_iterator(self._model)
        if epoch_iterator is None:
            return
        validation = Epochs(epoch_iterator, lambda: iter(()))
        DataStream(validation, _VALIDATE).restore(resume.validate, self._restored_part.tensors)
        validation.release()

    def _restore_last_metrics(self) -> None:
        """Lets the metrics say what they said when training ended, unless they are other ones now."""
        tensors = self._restored_part.tensors
        try:
            model_state.check_metric_parts(self._model, tensors)
        except CheckpointMismatchError:
            return
        model_state.set_metric_parts(self._model, tensors)

    def _replica_parts(self, *, also_by_one: bool = False) -> list[replica_parts.ReplicaPart]:
        written = model_state.written_by_replicas(self._model, also_by_one=also_by_one)
        return replica_parts.replica_parts(written)

    def _restore_history(self, resume: ResumePoint) -> None:
        history = getattr(self._model, "history", None)
        if history is not None:
            history.epoch, history.history = list(resume.history_epochs), resume.history

    def _steps_of_validation(self) -> Iterator[Step]:
        """The steps of one validation, with a boundary before each."""
        validation, data = self._validation, self._validation_data
        if validation is None or data is None:
            raise RuntimeError("The validation has not begun.")
        if self._phase != "validate":  # Keras looks at one element before it begins
            for step in validation.original():
                data.at_step(step[2])
                data.step_taken()
                yield step
            return
        with self._released_on_error():
            steps = self._remaining_steps_of_validation(validation, data)
        for begin, end, iterator in steps:
            self._step = begin
            data.at_step(iterator)
            self._look_at_data(iterator, _VALIDATE)
            if not self._may_go_on():
                return
            yield begin, end, iterator

    def _remaining_steps_of_validation(self, validation: Epochs, data: DataStream) -> Iterator[Step]:
        resume, self._resume_validation = self._resume_validation, None
        if resume is None or resume.phase != "validate" or resume.validate is None:
            return validation.original()
        validation.begin_epoch()
        iterator = data.restore(resume.validate, self._restored_part.tensors)
        self._look_at_data(iterator, _VALIDATE)
        model_state.set_metric_parts(self._model, self._restored_part.tensors)
        self._logs = resume.logs
        return validation.resumed(resume.step, iterator)

    def _restore_order_of_validation(self, data: DataStream) -> None:
        """Brings the seeds of shuffles in the validation data to where the saved program had them here.

        A resume into the validation itself does it with the position.
        """
        resume = self._resume_validation
        if resume is None or resume.validate is None or resume.phase == "validate":
            return
        iterator = data.restore(resume.validate, self._restored_part.tensors)
        self._look_at_data(iterator, _VALIDATE)
        if keras_internals.draws_before_validation(self._model):
            draws = self._data_variables.has(_VALIDATE)
            data.draw_unused(iterator if resume.validate.kept else None, resume.validate.taken, draws=draws)

    # ---------------------------------------------------------------------------------------- capture

    def _capture(self) -> Snapshot:
        """What has to be saved at this boundary."""
        self._unsaved.warn_of_changes()
        self._attributes.warn_of_changes()
        validating = self._phase == "validate"
        places, data_variables = self._data_variables.take_with(self._take_data)
        (train, train_tensors), (validate, validate_tensors) = places
        states, state_tensors = self._states.take()
        replica_tensors, replica_checksums = replica_parts.take(self._replica_parts())
        history = getattr(self._model, "history", None)
        resume = ResumePoint(
            epoch=self._epoch,
            phase=self._phase,
            step=self._step,
            stopped=bool(self._model.stop_training),
            logs=dict(self._logs or {}),
            epoch_logs=self._epoch_logs if validating else {},
            history=history.history if history is not None else {},
            history_epochs=list(history.epoch) if history is not None else [],
            train=train,
            validate=validate,
            callbacks=states,
            bound_to_workers=dict(self._bound),
        )
        part = WorkerPart(
            tensors=model_state.metric_parts(self._model)
            | replica_tensors
            | self._generators.take()
            | data_variables
            | train_tensors
            | validate_tensors
            | state_tensors,
            values={
                "random": take_random_state(),
                "replica_checksums": replica_checksums,
                _REPLICAS: self._replicas_here(),
            },
        )
        return Snapshot(step=self._train_steps, resume=resume.to_json(), part=part)

    def _take_data(self) -> Any:
        """Where the training and the validation data are."""
        return (
            self._train_data.take(within=self._phase == "train"),
            self._take_validation(within=self._phase == "validate"),
        )

    def _take_validation(self, *, within: bool) -> tuple[DataPlace | None, dict[str, Any]]:
        """Where the validation data is; before the first validation, where the earlier life left it."""
        if self._validation_data is not None:
            return self._validation_data.take(within=within)
        resume = self._resume_validation
        if resume is None:
            return None, {}
        saved = self._restored_part.tensors
        return resume.validate, {name: saved[name] for name in saved if name.startswith(_VALIDATE)}

    def _look_at_data(self, iterator: Any, name: str) -> None:
        """Finds out once what a data set keeps outside of its iterator; restores it, or says it cannot."""
        if name in self._looked_at:
            return
        self._looked_at.add(name)
        self._data_variables.look_at(iterator, name)
        for known in (name, ""):
            self._bound.pop(known, None)
        reason = bound_to_workers(iterator, workers=self._session.workers)
        if reason is not None:
            self._bound[name] = reason if name == _TRAIN else reason + _BOUND_BY_VALIDATION
            has_place = name == _TRAIN or self._had_validation_data
            if self._from_other_workers and has_place:  # other workers could go on in what was there then
                refuse_data(name, reason)
        self._warn_if_it_comes_otherwise(iterator, "training" if name == _TRAIN else "validation")

    def _warn_if_it_comes_otherwise(self, iterator: Any, what: str) -> None:
        if take_position(iterator, what) is None:
            outside = describe_outside(iterator)
            _log.warning(
                "The state of the %s data cannot be saved: the pipeline holds %s. A resumed run reads it "
                "again from where the iterator began and drops what was seen: slow, and %s.\nHINT: %s.",
                what,
                outside.holds,
                outside.result,
                outside.hint,
            )
        else:
            warn_of_unseeded_order(iterator, what)
            warn_of_lost_cache(iterator, what)

    def _warn_if_shuffle_is_shared(self, validation_data: DataStream) -> None:
        if self._train_data.shares_shuffle_with(validation_data):
            _log.warning(
                "Training and validation data come from one shuffle that orders each iteration anew: they "
                "mix, and after a resume the order of later epochs can differ. "
                "HINT: Dataset.shuffle(..., reshuffle_each_iteration=False), or split before shuffling."
            )

    # ------------------------------------------------------------------------------------- Keras's calls

    def _guard_function(self, name: str, data: DataStream | None) -> None:
        """Lets a lost worker end in a restart, and notes each step's logs."""
        if name in self._functions:
            return
        function = vars(self._model)[name]
        self._functions[name] = function
        functions = functools.partial(keras_internals.functions_of_step, function)

        def guarded(iterator: Any) -> Any:
            with (
                self._session.guard(),
                self._unsaved.execution(name, functions),
                self._attributes.execution(name),
            ):
                self._changed = True
                self._logs = function(iterator)
            if name not in self._looked_at:
                self._looked_at.add(name)
                warn_of_random_ops(functions(), in_validation=data is not self._train_data)
            if data is not None:
                data.step_taken()
            if data is self._train_data:
                self._train_steps += self._train.steps_per_execution
            return self._logs

        vars(self._model)[name] = guarded

    def _result_or_logs(self, step_logs: Any) -> Any:
        """Keras's logs of an epoch or a validation; a resumed one without a step left gets the saved ones."""
        if self._epoch_was_trained:
            self._epoch_was_trained = False
            return dict(self._epoch_logs)
        with self._session.guard():
            result = self._get_result(step_logs or self._logs)
        if self._phase == "train":
            self._epoch_logs = dict(result)
        return result
