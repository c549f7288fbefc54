"""Where in `fit` a checkpoint was made, as the manifest keeps it."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from tf_preempt.callbacks import logs
from tf_preempt.checkpointing.startup import BOUND, WRITTEN_EARLIER
from tf_preempt.errors import CheckpointFormatError

Phase = Literal["train", "validate", "finished"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataPlace:
    """Where one of Keras's epoch iterators was.

    Args:
        taken: steps that the present iterator has given.
        batches: steps of an epoch, if known by then.
        creations: iterators made since `fit` began; each advances the seeds of shuffles.
        begun: iterators from which an element was taken; it advances the seeds of shuffles behind shuffles.
        kept: the present iterator goes on to be used.
        replay: elements to go through again, see `second_passes`; None: nothing has to be.
        remade: the present iterator was made after the one to which they belong.
    """

    taken: int
    batches: int | None
    creations: int
    begun: int
    kept: bool
    replay: int | None = None
    remade: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """A place in `fit`.

    Args:
        epoch: index of the epoch; in phase ``finished`` the first that was not trained.
        phase: training, the validation after it, or over.
        step: the next step of that phase.
        stopped: a callback ended the training early.
        logs: of the last step of that phase.
        epoch_logs: of the epoch's training, when its validation runs.
        history: what `History.history` holds.
        history_epochs: what `History.epoch` holds.
        train: the training data.
        validate: the validation data; None before the first validation.
        callbacks: state of the other callbacks, see `callback_states`.
        bound_to_workers: data with which no other number of workers can go on, and why; see `any_workers`.
    """

    epoch: int
    phase: Phase
    step: int
    stopped: bool
    logs: dict[str, Any]
    epoch_logs: dict[str, Any]
    history: dict[str, Any]
    history_epochs: list[int]
    train: DataPlace
    validate: DataPlace | None
    callbacks: list[Any]
    bound_to_workers: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """The resume point as JSON values."""
        fields = dataclasses.asdict(self)
        for name in ("logs", "epoch_logs", "history", "callbacks"):
            fields[name] = logs.encode(fields[name])
        return fields

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> ResumePoint:
        """Reads what `to_json` wrote.

        Raises:
            CheckpointFormatError: it was written by something else, a custom loop for example.
        """
        fields = {BOUND: WRITTEN_EARLIER} | fields
        known = {field.name for field in dataclasses.fields(cls)}
        missing = known - set(fields)
        if missing:
            raise CheckpointFormatError(
                "The checkpoint was not written by the Keras callback: its resume point has no "
                f"{sorted(missing)}.",
                hint="use the handler with which it was written, or another directory",
            )
        values = {name: fields[name] for name in known}
        for name in ("logs", "epoch_logs", "history", "callbacks"):
            values[name] = logs.decode(values[name])
        values["train"] = DataPlace(**values["train"])
        if values["validate"] is not None:
            values["validate"] = DataPlace(**values["validate"])
        return cls(**values)
