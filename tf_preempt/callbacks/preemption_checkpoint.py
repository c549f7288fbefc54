"""The Keras callback that makes `fit` survive preemption exactly."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_preempt.callbacks import _keras_internals as keras_internals
from tf_preempt.callbacks import model_state
from tf_preempt.callbacks.begin_hooks import may_change_variables
from tf_preempt.callbacks.callback_states import CallbackStates
from tf_preempt.callbacks.legacy_keras import check_not_legacy
from tf_preempt.callbacks.on_chief import warn_of_shared_files
from tf_preempt.callbacks.protected_fit import ProtectedFit
from tf_preempt.checkpointing.arguments import (
    OnPreemption,
    check_max_to_keep,
    check_on_preemption,
    raises_on_preemption,
    warn_of_status,
)
from tf_preempt.checkpointing.cadence import Cadence, SaveEvery
from tf_preempt.checkpointing.cluster import check_stock_strategy, check_strategy, cluster_of
from tf_preempt.checkpointing.committer import Committer, describe_variables
from tf_preempt.checkpointing.directory import directory_news, resolve_directory
from tf_preempt.checkpointing.session import SessionOptions, TrainingSession
from tf_preempt.errors import ConfigError, DirectoryInUseError, Preempted
from tf_preempt.strategies.input import expect_checkpoints
from tf_preempt.termination import standby
from tf_preempt.termination.config import TerminationConfig

_log = logging.getLogger("tf_preempt")


class PreemptionCheckpoint(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Saves on notice and at a cadence, and resumes `fit` exactly where it was.

    Give it to ``model.fit`` on every worker, with the same arguments; callbacks beside it that write files go
    into `OnChief`.  When the platform gives notice, all
    workers finish the running step, save together, and leave with the platform's restart code.  Started
    again, the program goes on with the next step: weights, optimizer, metrics, seeds, epoch, step, History
    and the order of the data are as if nothing had happened.  A program that had finished trains nothing and
    returns its complete History.

    Example:
        >>> model.fit(train, validation_data=test, epochs=5,
        ...           callbacks=[tf_preempt.callbacks.PreemptionCheckpoint("runs/7")])

    Args:
        directory: where checkpoints go: the same place on all workers, on a local or network file system or a
            URL that ``tf.io.gfile`` knows.  None: from the environment.
        termination_config: what counts as a notice and how to leave; ours or TensorFlow's.
        save_every: when periodic checkpoints are made, for what comes without notice: ``"auto"`` (at most
            1 % of training time, at least every hour; 5 % where no save fits into a notice), ``"epoch"``, a
            number of training steps, a ``datetime.timedelta``, or None.
        max_to_keep: how many checkpoints stay; None: all.  The last one of each finished `fit` always stays.
        on_preemption: what follows the save: ``"exit"``: leave with the platform's restart code; ``"raise"``:
            raise `tf_preempt.errors.Preempted`; ``"stop"``: let `fit` return without an end of the unfinished
            epoch, and say in `preempted` why; None: raise in a notebook, else exit.
        verbose: 1: the chief says which step it restored, and which directory the environment chose: in the
            log where that shows INFO, else on standard output.  0: at level INFO of the log only.
        environ: the environment that is read.

    Attributes:
        preempted: the `tf_preempt.errors.Preempted` because of which the last `fit` was stopped; None if it
            was not.  Its `exit_code` is the status that asks for a restart.

    Raises:
        ConfigError: an argument has a value that it cannot have.
        DirectoryNotGivenError: there is no directory, see Environment.
        UnsupportedStrategyError: ``tf.distribute.MultiWorkerMirroredStrategy`` is in use; the message names
            the class to use.

    Environment:
        TF_PREEMPT_DIR, AIP_CHECKPOINT_DIR: the directory, when none is given.
        TF_PREEMPT_DIR_OVERRIDE: the directory, whatever is given.
        TF_PREEMPT_STATUS_FILE: written for the supervisor (``tf-preempt run`` sets it).
        TF_PREEMPT_STEP_FILE: written for who wants to disturb the training (``tf-preempt drill`` sets it).
        TF_CONFIG: read to refuse workers that would each train alone in one directory.
        TF_DETERMINISTIC_OPS: TensorFlow's; where op determinism is off, one warning says so.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        termination_config: Any = None,
        save_every: SaveEvery = "auto",
        max_to_keep: int | None = 3,
        on_preemption: OnPreemption = None,
        verbose: int = 1,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__()
        check_max_to_keep(max_to_keep)
        check_on_preemption(on_preemption)
        check_stock_strategy()
        expect_checkpoints()
        self.directory = resolve_directory(directory, environ)
        self._config = TerminationConfig.from_any(termination_config)
        self._cadence = Cadence.parse(save_every)
        self._max_to_keep = max_to_keep
        self._on_preemption = on_preemption
        self._verbose = verbose
        self._opening = directory_news(directory, environ)
        self._environ = environ
        self._fit: ProtectedFit | None = None
        self.preempted: Preempted | None = None
        if raises_on_preemption(on_preemption) or self._config.leaves_sigterm_alone:
            standby.decline()
        else:
            standby.begin_before_training(environ, self._config.slurm)

    def set_model(self, model: Any) -> None:
        """Takes the model that is to be trained.

        Raises:
            ConfigError: it is of the legacy Keras; before anything is trained or written.
        """
        check_not_legacy(model)
        super().set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Restores the newest checkpoint and begins to watch.

        Raises:
            TfPreemptError: the directory, the checkpoint or a worker is not as it has to be; on all workers
                alike, before the first step and with nothing left behind.
        """
        _release_abandoned()
        self.preempted = None
        model = self.model
        found = keras_internals.fit_locals(model)
        self._check_alone(found.callbacks)
        strategy = model.distribute_strategy
        check_strategy(strategy, self._environ)
        cluster = cluster_of(strategy)
        warn_of_shared_files(found.callbacks, cluster)
        keras_internals.ensure_built(model, found.epoch_iterator)
        variables = describe_variables(model_state.saved_variables(model))
        checkpoint = model_state.make_checkpoint(model)
        manager = tf.train.CheckpointManager(checkpoint, self.directory, max_to_keep=None)
        committer = Committer(manager, max_to_keep=self._max_to_keep, variables=variables)
        running: list[ProtectedFit] = []
        options = SessionOptions(
            config=self._config,
            cadence=self._cadence,
            fit=_finished_fits.get(self.directory, 0),
            raise_on_preemption=raises_on_preemption(self._on_preemption),
            verbose=self._verbose,
            opening=self._opening,
            is_active=lambda: not running or running[0].is_running,
            environ=self._environ,
        )
        session = TrainingSession(checkpoint, committer, cluster, options)
        states = CallbackStates(found.callbacks, ignore=self)
        others = [callback for callback in found.callbacks if callback is not self]
        self._fit = ProtectedFit(
            model,
            session,
            found.epoch_iterator,
            states,
            epochs=self.params["epochs"],
            reads_again=may_change_variables(others),
            stops=self._on_preemption == "stop",
        )
        running.append(self._fit)
        _running.append(self._fit)
        try:
            self._fit.begin()
        except BaseException:
            _close(self._fit)
            self._fit = None
            raise

    def _check_alone(self, callbacks: list[Any]) -> None:
        others = [one for one in callbacks if isinstance(one, PreemptionCheckpoint) and one is not self]
        if others:
            raise DirectoryInUseError(
                f"fit was given {len(others) + 1} PreemptionCheckpoint callbacks "
                f"({', '.join([self.directory, *(one.directory for one in others)])}).",
                hint="pass one: a training has one checkpoint directory",
            )
        if any(isinstance(one, keras.callbacks.BackupAndRestore) for one in callbacks):
            raise ConfigError(
                "fit was given keras.callbacks.BackupAndRestore beside PreemptionCheckpoint: both would set "
                "the epoch and the weights with which training begins.",
                hint="leave BackupAndRestore out",
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the epoch."""
        if self._fit is not None:
            self._fit.on_epoch_begin(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Notes the end of the epoch."""
        if self._fit is not None:
            self._fit.on_epoch_end(epoch)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Hooks into the validation."""
        if self._fit is not None:
            self._fit.on_test_begin()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Makes the last commit; of a `fit` that is stopped, says that it is unfinished.

        Raises:
            CheckpointWriteError: it could not be written.
        """
        if self._fit is None:
            return
        fit, self._fit = self._fit, None
        try:
            fit.finish()
        finally:
            _close(fit)
        self.preempted = fit.stopped
        if self.preempted is not None:
            warn_of_status(self.preempted)
            return
        _finished_fits[self.directory] = _finished_fits.get(self.directory, 0) + 1


def _release_abandoned() -> None:
    """Closes what an exception has left open: nothing tells a callback that `fit` was left that way."""
    for fit in [fit for fit in _running if not fit.is_running]:
        _close(fit)


def _close(fit: ProtectedFit) -> None:
    fit.release()
    if fit in _running:
        _running.remove(fit)


_running: list[ProtectedFit] = []

_finished_fits: dict[str, int] = {}
"""How many trainings this process has finished in each directory: the ordinal of the next."""
