"""Compares the checkpoints of two trainings, tensor by tensor.

``python -m tf_preempt.testing.children.compare_checkpoints REQUEST ANSWER``: both are files of JSON, the
first as `compare` takes it, the second with what it gives.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_preempt import _files
from tf_preempt.checkpointing.manifest import Manifest, readable_manifests
from tf_preempt.checkpointing.worker_part import WorkerPart, read_part
from tf_preempt.strategies._tf_internals.checkpoints import names_in_checkpoint
from tf_preempt.testing.drill.differences import Difference, compare_arrays, compare_values

__all__ = ["compare", "main"]

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
# Keras's optimizers, whatever a program calls them.
_OF_AN_OPTIMIZER = re.compile(r"(^|/)optimizer/|/_(variables/\d+|iterations|learning_rate)/")
# How many checkpoints were made differs by design; the graph is no value.
_NOT_COMPARED = ("save_counter", "_CHECKPOINTABLE_OBJECT_GRAPH")
_WEIGHTS, _OPTIMIZER, _SEEDS, _METRICS, _CALLBACKS, _OTHER = (
    "weights",
    "optimizer",
    "seeds",
    "metrics",
    "callbacks",
    "other state",
)
_GROUPS_OF_PARTS = {
    "metric/": _METRICS,
    "sync_on_read/": _METRICS,
    "replica/": _WEIGHTS,
    "untracked/": _SEEDS,
    "generator/": _SEEDS,
    "callback/": _CALLBACKS,
}
_HISTORY = ("history", "history_epochs", "epoch_logs", "logs")
_PLACE = ("epoch", "phase", "step", "stopped")


def compare(request: dict[str, Any]) -> dict[str, Any]:
    """Compares the last checkpoints in full, and those before them by their variables.

    Args:
        request: ``pairs``: for each training of the program that both have completed, the ``prefix`` and the
            number of ``workers`` of its last checkpoint in both; ``directories``: the two checkpoint
            directories; ``kept``: two folders with earlier checkpoints.

    Returns:
        ``differences``: of the last checkpoints, as `Difference`; ``compared``: how many values of which
        group; ``not_compared``: positions in data, which TensorFlow can save but nobody can read;
        ``random``: which random states of the processes differ; ``steps``: for each step (``fit``, ``step``)
        at which both have a checkpoint whether its variables are ``identical``.
    """
    answer: dict[str, Any] = {"differences": [], "compared": {}, "not_compared": 0, "random": []}
    for pair in request["pairs"]:
        _compare_pair(request["directories"], pair, answer)
    answer["steps"] = list(_compare_steps(request["kept"]))
    return answer


def _compare_pair(directories: Sequence[str], pair: dict[str, Any], answer: dict[str, Any]) -> None:
    label = f"fit {pair['fit']}: " if pair["fit"] else ""
    manifests = [
        _by_prefix(directory, prefix) for directory, prefix in zip(directories, pair["prefixes"], strict=True)
    ]
    found = _compare_variables(directories, manifests, answer)
    found += _compare_resume(manifests, answer)
    for worker in range(pair["workers"]):
        found += _compare_parts(directories, manifests, worker, pair["workers"], answer)
    answer["differences"] += [
        dataclasses.asdict(dataclasses.replace(one, name=f"{label}{one.name}")) for one in found
    ]


def _by_prefix(directory: str, prefix: str) -> Manifest:
    return next(one for one in readable_manifests(directory)[0] if one.prefix == prefix)


class _Variables:
    """The variables of a checkpoint by their keys, each read when it is asked for.

    Keys, unlike names, do not depend on what else a process has made before.
    """

    def __init__(self, directory: str, manifest: Manifest) -> None:
        self._reader = tf.train.load_checkpoint(_files.join(directory, manifest.prefix))
        self._names = names_in_checkpoint(self._reader)
        dtypes = self._reader.get_variable_to_dtype_map()
        saved = {key for key in dtypes if key.partition("/")[0] not in _NOT_COMPARED}
        self.keys = {key for key in saved if dtypes[key] != tf.variant}
        self.unreadable = len(saved) - len(self.keys)

    def read(self, key: str) -> Any:
        return self._reader.get_tensor(key) if key in self.keys else None

    def name(self, key: str) -> str:
        path = key.removesuffix(_VALUE)
        name = self._names.get(key) or path
        others = [self._names.get(other) for other in self.keys if other != key]
        return f"{name} ({path})" if name in others else name


def _group(key: str, name: str) -> str:
    if "generator" in key or "seed_generator" in name:
        return _SEEDS
    if _OF_AN_OPTIMIZER.search(key) and "/_trainable_variables/" not in key:
        return _OPTIMIZER
    return _WEIGHTS


def _compare_variables(
    directories: Sequence[str], manifests: Sequence[Manifest], answer: dict[str, Any]
) -> list[Difference]:
    one, other = (_Variables(*pair) for pair in zip(directories, manifests, strict=True))
    answer["not_compared"] += max(one.unreadable, other.unreadable)
    found = []
    for key in sorted(one.keys | other.keys):
        name = (one if key in one.keys else other).name(key)
        group = _group(key, name)
        _count(answer, group)
        difference = compare_arrays(_array(one.read(key)), _array(other.read(key)), name=name, group=group)
        found += [difference] if difference else []
    return sorted(found, key=lambda difference: difference.name)


def _count(answer: dict[str, Any], group: str) -> None:
    answer["compared"][group] = answer["compared"].get(group, 0) + 1


def _array(value: Any) -> Any:
    """Scalars and strings come as Python's own."""
    return None if value is None else np.asarray(value, dtype=object if isinstance(value, bytes) else None)


def _compare_resume(manifests: Sequence[Manifest], answer: dict[str, Any]) -> list[Difference]:
    one, other = (manifest.resume for manifest in manifests)
    found: list[Difference] = []
    for group, names in (("history", _HISTORY), ("place", _PLACE), (_CALLBACKS, ("callbacks",))):
        for name in names:
            if name in one or name in other:
                _count(answer, group)
                found += compare_values(one.get(name), other.get(name), name=name, group=group)
    if manifests[0].step != manifests[1].step:
        found += compare_values(manifests[0].step, manifests[1].step, name="steps in all", group="place")
    return found


def _compare_parts(
    directories: Sequence[str],
    manifests: Sequence[Manifest],
    worker: int,
    workers: int,
    answer: dict[str, Any],
) -> list[Difference]:
    parts = [
        read_part(directory, _part_of(manifest, worker))
        for directory, manifest in zip(directories, manifests, strict=True)
    ]
    label = f"worker {worker}: " if workers > 1 else ""
    found = []
    for name in sorted(parts[0].tensors.keys() | parts[1].tensors.keys()):
        tensors = [part.tensors.get(name) for part in parts]
        if any(tensor is not None and tensor.dtype == tf.variant for tensor in tensors):
            answer["not_compared"] += 1
            continue
        group = next((its for start, its in _GROUPS_OF_PARTS.items() if name.startswith(start)), _OTHER)
        _count(answer, group)
        arrays = [None if tensor is None else tensor.numpy() for tensor in tensors]
        difference = compare_arrays(*map(_array, arrays), name=f"{label}{name}", group=group)
        found += [difference] if difference else []
    answer["random"] += [f"{label}{name}" for name in _differing_random_states(*parts)]
    return found


def _part_of(manifest: Manifest, worker: int) -> str:
    mark = f".workers/{worker:05d}-of-"
    names = [record.name for record in manifest.files if mark in record.name]
    return next(name.removesuffix(".index") for name in names if name.endswith(".index"))


def _differing_random_states(one: WorkerPart, other: WorkerPart) -> list[str]:
    a, b = (part.values.get("random") or {} for part in (one, other))
    return [name for name in sorted(a.keys() | b.keys()) if a.get(name) != b.get(name)]


def _compare_steps(kept: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Where both trainings have a checkpoint of one step, the newest of that step counts."""
    by_step: list[dict[tuple[int, int], Manifest]] = [
        {(one.resume.get("fit", 0), one.step): one for one in reversed(readable_manifests(folder)[0])}
        for folder in kept
    ]
    for fit, step in sorted(by_step[0].keys() & by_step[1].keys()):
        pair = [manifests[fit, step] for manifests in by_step]
        differs = _compare_variables(kept, pair, {"compared": {}, "not_compared": 0})
        yield {"fit": fit, "step": step, "identical": not differs}


def main(argv: Sequence[str]) -> None:
    """Reads the request, writes the answer.

    Args:
        argv: the two paths.
    """
    with open(argv[0], encoding="utf-8") as file:
        request = json.load(file)
    with open(argv[1], "w", encoding="utf-8") as file:
        json.dump(compare(request), file)


if __name__ == "__main__":
    main(sys.argv[1:])
