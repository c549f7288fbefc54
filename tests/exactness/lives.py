"""Lives of a training program: undisturbed, told to go at a chosen moment, killed there, or gone on with.

A *moment* is a named place in a program: ``fit 0 epoch 1 train_batch_end 2``.  Its undisturbed life counts
them, so that the others can be interrupted at each.  All that callbacks and loops see is written down, with
the logs, as `Outcome.seen`: the lives of an interrupted program together have to see what the undisturbed one
saw, each thing once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from tf_preempt.callbacks import PreemptionCheckpoint, preemption_checkpoint
from tf_preempt.checkpointing import session
from tf_preempt.checkpointing.committer import Committer
from tf_preempt.errors import Preempted

EVERY_STEP = "after every step"
RESTORING = "while restoring"
SAVING = "while saving"

SAVE_EVERY = 2  # steps, where a life has periodic saves


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """What the lives of one program left.

    Args:
        ended: the last life came to the program's end.
        lives: how many there were.
        seen: steps, validations and epochs that came to their end, with their logs, in order.
        histories: ``History.epoch`` and ``History.history`` of each `fit`, and what was found between them,
            in the last life.
        variables: a digest of each replica's value of each variable, in the last life.
    """

    ended: bool = False
    lives: int = 0
    seen: list[str] = dataclasses.field(default_factory=list)
    histories: list[Any] = dataclasses.field(default_factory=list)
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


class Reported(logging.Handler):
    """Hears the log line that tells that the workers have begun to agree where to save."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("The workers agree where to save (SIGTERM)"):
            self.heard.set()


def give_notice() -> None:
    """Sends this process a SIGTERM, and goes on only when the workers are about to agree."""
    reported, log = Reported(), logging.getLogger("tf_preempt")
    level = log.level
    log.addHandler(reported)
    log.setLevel(logging.INFO)
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        if not reported.heard.wait(30):
            raise RuntimeError("The signal was not noticed within 30 s.")
    finally:
        log.setLevel(level)
        log.removeHandler(reported)


class Life:
    """One life of a program in this process, as good as new: nothing finished, no Keras state, seeds set.

    Args:
        directory: of the checkpoints.
        outcome: is added to.
        strategy: in whose scope models are made; None: the default one.
        on_moment: is told the name of each moment.
        options: for `PreemptionCheckpoint` and the handler, besides directory and `on_preemption`.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        outcome: Outcome,
        *,
        strategy: Any = None,
        on_moment: Callable[[str], None] = lambda name: None,
        **options: Any,
    ) -> None:
        self.directory = directory
        self.strategy = strategy
        self.options = {"save_every": None, "on_preemption": "raise", "verbose": 0, **options}
        self.moment = on_moment
        self.outcome = outcome
        self.fits = 0

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def saw(self, what: str, logs: dict[str, Any] | None = None) -> None:
        """Writes down that something came to its end."""
        values = {name: np.asarray(value).item() for name, value in (logs or {}).items()}
        self.outcome.seen.append(f"{what} {values}")

    def result(self, value: Any) -> None:
        """Writes down what a life finds outside of a `fit`; each life finds it again."""
        self.outcome.histories.append(value)

    def fit(self, model: keras.Model, *callbacks: Any, **arguments: Any) -> Any:
        """Trains under protection, with our callback before the others."""
        ours = PreemptionCheckpoint(self.directory, **self.options)
        observer = Observer(self, f"fit {self.fits}")
        self.fits += 1
        arguments = {"epochs": 2, "verbose": 0, "shuffle": False, **arguments}
        history = model.fit(callbacks=[*callbacks, ours, observer], **arguments)
        self.outcome.histories.append([history.epoch, history.history])
        return history

    def live(self, program: Callable[[Life], list[Any]]) -> bool:
        """Runs the program; says whether it came to its end."""
        preemption_checkpoint._finished_fits.clear()  # as in a new process
        session._unanswered.clear()
        keras.backend.clear_session(free_memory=False)  # collecting all would take longer than the life
        _collect_last_life()
        keras.utils.set_random_seed(1)
        self.outcome.lives += 1
        self.outcome.histories = []
        try:
            kept = program(self)
        except Preempted:
            return False
        self.outcome.ended = True
        self.outcome.variables = {
            f"{index} {getattr(variable, 'path', variable.name)} {replica}": digest(part)
            for index, variable in enumerate(kept)
            for replica, part in enumerate(self._parts(variable))
        }
        return True

    def _parts(self, variable: Any) -> list[Any]:
        value = variable.value if isinstance(variable, keras.Variable) else variable
        return [value] if self.strategy is None else list(self.strategy.experimental_local_results(value))


def _collect_last_life() -> None:
    """Collects what is not older than this process's lives, while iterators of data are young.

    TensorFlow 2.21 may wait up to a minute, and for longer the older an iterator is, when it deletes one.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    gc.collect()


def digest(value: Any) -> str:
    array = np.asarray(value.numpy())
    return f"{array.dtype}{array.shape} {hashlib.sha256(array.tobytes()).hexdigest()[:16]}"


def all_variables(*models: keras.Model) -> list[Any]:
    """What a `fit` changes in models: weights, seeds, optimizers, metrics."""
    found: list[Any] = []
    for model in models:
        found += [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return found


class Observer(keras.callbacks.Callback):
    """Tells a life of each moment in a `fit`, and writes down what came to its end."""

    def __init__(self, life: Life, name: str) -> None:
        super().__init__()
        self._life, self._name, self._epoch = life, name, -1

    def _moment(self, what: str) -> None:
        epoch = "" if self._epoch < 0 else f" epoch {self._epoch}"
        self._life.moment(f"{self._name}{epoch} {what}")

    def _saw(self, what: str, logs: Any) -> None:
        self._life.saw(f"{self._name} epoch {self._epoch} {what}", logs)

    def get_state(self) -> None:
        """It has none that a later life should have."""

    def set_state(self, state: None) -> None:
        """It has none."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._moment("train_begin")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._moment("epoch_begin")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._moment(f"train_batch_begin {batch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._saw(f"train {batch}", logs)
        self._moment(f"train_batch_end {batch}")

    def on_test_begin(self, logs: Any = None) -> None:
        self._moment("test_begin")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._moment(f"test_batch_begin {batch}")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._saw(f"test {batch}", logs)
        self._moment(f"test_batch_end {batch}")

    def on_test_end(self, logs: Any = None) -> None:
        self._saw("test", logs)
        self._moment("test_end")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._saw("epoch", logs)
        self._moment("epoch_end")


Program = Callable[[Life], list[Any]]

_END_OF_STEP = re.compile(r"batch_end|step \d+ (end|within)")  # of a fit, or of a loop


@dataclasses.dataclass(frozen=True, kw_only=True)
class Where:
    """Where lives take place.

    Args:
        root: directory of all checkpoint directories.
        strategy: of the models; None: the default one.
        is_told: says, of the number of a moment, whether this worker gets the notice of it; each moment's is
            for one worker, as the others hear of it once only.
        gone_on: outcomes of lives that went on, by what they found; see `gone_on`.
    """

    root: pathlib.Path
    strategy: Any = None
    is_told: Callable[[int], bool] = lambda number: True
    gone_on: dict[Any, Outcome] = dataclasses.field(default_factory=dict)


def undisturbed(program: Program, where: Where) -> tuple[Outcome, list[str]]:
    """Lives once; returns what it left and the names of all moments."""
    outcome, moments = Outcome(), list[str]()
    Life(where.root / "whole", outcome, strategy=where.strategy, on_moment=moments.append).live(program)
    return outcome, moments


def gone_on(
    program: Program, where: Where, directory: pathlib.Path, before: Outcome, **options: Any
) -> Outcome:
    """What the lives before and one that goes on from their checkpoints left together.

    Who goes on from the same does the same: notices at many moments are acted on at one boundary.
    """
    found = committed_in(directory), str(options)
    if found not in where.gone_on:
        outcome = where.gone_on[found] = Outcome()
        Life(directory, outcome, strategy=where.strategy, **options).live(program)
    after = where.gone_on[found]
    return dataclasses.replace(after, lives=before.lives + after.lives, seen=before.seen + after.seen)


def committed_in(directory: pathlib.Path) -> tuple[str, ...]:
    """All that a later life can find in a checkpoint directory: manifests hold checksums of the rest."""
    found = []
    for path in sorted(directory.rglob("*.manifest.json")):
        manifest = json.loads(path.read_text())
        del manifest["written"], manifest["seconds"]
        found.append(f"{path.relative_to(directory)} {json.dumps(manifest)}")
    return tuple(found)


def started_again(program: Program, where: Where) -> Outcome:
    """Is started again after its end."""
    outcome = Outcome()
    Life(where.root / "whole", outcome, strategy=where.strategy).live(program)
    return outcome


def told_at(program: Program, where: Where, moment: int) -> Outcome:
    """Is told at a moment of the undisturbed life, given by its number; a second life goes on."""
    outcome, directory = Outcome(), where.root / f"told {moment}"
    count = iter(range(10**9))

    def on_moment(_: str) -> None:
        if next(count) == moment and where.is_told(moment):
            give_notice()

    if Life(directory, outcome, strategy=where.strategy, on_moment=on_moment).live(program):
        return outcome
    return gone_on(program, where, directory, outcome)


def told_after_every_step(program: Program, where: Where) -> Outcome:
    """Each life does one step, of training or of validation, and is told to go."""
    outcome, directory = Outcome(), where.root / EVERY_STEP

    for number in range(100):
        done = [False]

        def on_moment(name: str, done: list[bool] = done, number: int = number) -> None:
            if _END_OF_STEP.search(name) and not done[0]:
                done[0] = True
                if where.is_told(number):
                    give_notice()

        if Life(directory, outcome, strategy=where.strategy, on_moment=on_moment).live(program):
            break
    return outcome


def told_while_restoring(program: Program, where: Where, moment: int) -> Outcome:
    """Is told at a moment, in its second life again while it restores; a third life goes on."""
    outcome, directory = Outcome(), where.root / RESTORING
    count = iter(range(10**9))

    def on_moment(_: str) -> None:
        if next(count) == moment and where.is_told(0):
            give_notice()

    if Life(directory, outcome, strategy=where.strategy, on_moment=on_moment).live(program):
        return outcome
    with notice_in("restore_variables", where):
        if Life(directory, outcome, strategy=where.strategy).live(program):
            return outcome
    Life(directory, outcome, strategy=where.strategy).live(program)
    return outcome


def told_while_saving(program: Program, where: Where) -> Outcome:
    """Is told while the first periodic save writes variables; a second life goes on."""
    outcome, directory = Outcome(), where.root / SAVING
    with notice_in("save_variables", where):
        if Life(directory, outcome, strategy=where.strategy, save_every=SAVE_EVERY).live(program):
            return outcome
    Life(directory, outcome, strategy=where.strategy).live(program)
    return outcome


@contextlib.contextmanager
def notice_in(method: str, where: Where) -> Iterator[None]:
    """Gives one worker notice in its first call of a method of `Committer`, before it does its work."""
    original, told = getattr(Committer, method), [not where.is_told(0)]

    def with_notice(*args: Any, **kwargs: Any) -> Any:
        if not told[0]:
            told[0] = True
            give_notice()
        return original(*args, **kwargs)

    setattr(Committer, method, with_notice)
    try:
        yield
    finally:
        setattr(Committer, method, original)


def killed_at(program: Program, where: Where, chosen: set[int]) -> dict[int, Outcome]:
    """Dies without notice at each of the moments, and goes on from what was on the disk then.

    What was there is copied, manifests first: a checkpoint that is committed while the rest is copied does
    not exist in the copy.  Nothing is deleted meanwhile.
    """
    killed: dict[int, Outcome] = {}
    first, directory = Outcome(), where.root / "killed"
    count = iter(range(10**9))

    def on_moment(_: str) -> None:
        number = next(count)
        if number in chosen:
            copy_as_killed(directory, directory.with_name(f"killed {number}"))
            killed[number] = Outcome(lives=1, seen=list(first.seen))

    options = {"save_every": SAVE_EVERY, "max_to_keep": None}
    Life(directory, first, strategy=where.strategy, on_moment=on_moment, **options).live(program)
    return {
        number: gone_on(program, where, directory.with_name(f"killed {number}"), before, **options)
        for number, before in killed.items()
    }


def copy_as_killed(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies a checkpoint directory as a kill at this moment would leave it."""
    manifests = {path.relative_to(source): path.read_bytes() for path in source.rglob("*.manifest.json")}

    def ignore(_: str, names: list[str]) -> list[str]:
        return [name for name in names if name.endswith((".manifest.json", ".tmp")) or "temp" in name]

    if source.exists():
        shutil.copytree(source, target, ignore=ignore)
    for name, content in manifests.items():
        (target / name).write_bytes(content)
