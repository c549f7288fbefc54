"""Runs cells of the matrix: ``run.py DIRECTORY STRATEGY SHARE PROGRAM...``.

STRATEGY is ``default``, ``mirrored`` or ``multi_worker`` (then ``TF_CONFIG`` says which worker this is);
SHARE is ``all`` ways to interrupt a program, ``third`` (of the moments), or ``some`` (one or two).  Writes
``DIRECTORY/<program>/<worker>.json``: the undisturbed outcome, and that of each way to be interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
import warnings
import zlib
from typing import Any

import tensorflow as tf

import tf_preempt
from tests.exactness import lives
from tests.exactness.programs import PROGRAMS


def make_strategy(name: str) -> Any:
    if name == "default":
        return None
    if name == "mirrored":
        return tf_preempt.strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    return tf_preempt.strategies.MultiWorkerMirroredStrategy()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """In which ways a program is interrupted.

    Args:
        told: numbers of the moments at which it is given notice.
        killed: numbers of the moments at which it is killed.
        others: ways that are no moments.
    """

    told: list[int]
    killed: list[int]
    others: list[str]

    @classmethod
    def of(cls, program: str, count: int, share: str) -> Chosen:
        """All ways, or some of them: other ones for each program.

        Args:
            program: its name.
            count: how many moments it has.
            share: ``all``, ``third`` or ``some``.
        """
        every = list(range(count))
        ways = [lives.EVERY_STEP, lives.RESTORING, lives.SAVING]
        if share == "all":
            return cls(told=every, killed=every, others=ways)
        number = zlib.crc32(program.encode())
        if share == "third":
            return cls(told=every[number % 3 :: 3], killed=every[number // 3 % 3 :: 3], others=ways)
        told, killed = ([number % count], [(number // 2) % count])
        if number % 3 == 0:
            return cls(told=[], killed=killed, others=[ways[number // 3 % len(ways)]])
        return (
            cls(told=told, killed=[], others=[])
            if number % 3 == 1
            else cls(told=[], killed=killed, others=[])
        )


def run_cell(name: str, where: lives.Where, share: str, *, can_be_killed: bool) -> dict[str, Any]:
    """All outcomes of one program under one strategy, by the way in which it was interrupted."""
    program = PROGRAMS[name]
    whole, moments = lives.undisturbed(program, where)
    chosen = Chosen.of(name, len(moments), share)
    outcomes = {"undisturbed": whole, "started again": lives.started_again(program, where)}
    told = chosen.told if can_be_killed or share == "third" else sorted({*chosen.told, *chosen.killed})
    for number in told:
        if not moments[number].startswith("outside"):  # a signal ends the process there
            outcomes[f"told at {moments[number]}"] = lives.told_at(program, where, number)
    if can_be_killed:
        for number, outcome in lives.killed_at(program, where, set(chosen.killed)).items():
            outcomes[f"killed at {moments[number]}"] = outcome
    if share == "some" and not can_be_killed:  # several processes take their time
        return {way: dataclasses.asdict(outcome) for way, outcome in outcomes.items()}
    if lives.EVERY_STEP in chosen.others:
        outcomes[f"told {lives.EVERY_STEP}"] = lives.told_after_every_step(program, where)
    if lives.RESTORING in chosen.others:
        within = [number for number, moment in enumerate(moments) if not moment.startswith("outside")]
        middle = within[len(within) // 2]
        outcomes[f"told {lives.RESTORING}"] = lives.told_while_restoring(program, where, middle)
    if lives.SAVING in chosen.others:
        outcomes[f"told {lives.SAVING}"] = lives.told_while_saving(program, where)
    return {way: dataclasses.asdict(outcome) for way, outcome in outcomes.items()}


def set_up() -> None:
    """What has to be said before TensorFlow begins."""
    warnings.simplefilter("ignore")  # Keras says of data of unknown length that it ran out
    tf.config.experimental.enable_op_determinism()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def main(directory: str, strategy_name: str, share: str, *programs: str) -> None:
    set_up()
    strategy = make_strategy(strategy_name)
    resolver = getattr(strategy, "cluster_resolver", None)
    worker = resolver.task_id or 0 if resolver else 0
    workers = 2 if strategy_name == "multi_worker" else 1
    for name in programs:
        root = pathlib.Path(directory, name)
        root.mkdir(parents=True, exist_ok=True)
        where = lives.Where(root=root, strategy=strategy, is_told=lambda number: number % workers == worker)
        outcomes = run_cell(name, where, share, can_be_killed=workers == 1)
        (root / f"{worker}.json").write_text(json.dumps(outcomes))
        print("DONE", name, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
