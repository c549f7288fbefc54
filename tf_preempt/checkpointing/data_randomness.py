"""What a pipeline keeps where no checkpoint reaches, in words: the op, its line, what a resume makes of it.

Such a pipeline is gone through again from where its iterator began.  What that gives depends on what it
keeps: a random op with a seed begins its numbers again with each iterator, so that a resume is exact and only
slow; one without draws others.

A shuffle without a seed gets one from each process.  Where the iterator's state is saved, the running epoch
goes on as it was, and later ones come in another order than they would have; gone through again, it gives
another order at once: examples come twice, and others never.

A cache in memory is part of the iterator's state, until a shuffle behind it has read all of it.  The resumed
run then fills it anew: with the same elements, unless what is below draws others in each epoch.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")

_HINTS = {
    "random": "draw with %s and a seed that comes with the element, from a Dataset.random(seed=1) zipped to "
    "the data; in place of fit(x, y, shuffle=True) write "
    "fit(tf_preempt.data.from_arrays(x, y, batch_size=32, seed=1))",
    "python": "use tf_preempt.data.from_source in place of from_generator, and tf.data transformations in "
    "place of Python functions",
    "other": "use tf.data transformations without state of their own",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outside:
    """Words about a pipeline whose state cannot be saved.

    Args:
        holds: what it keeps.
        result: what going through it again gives.
        hint: the cure.
    """

    holds: str
    result: str
    hint: str


def describe_outside(iterator: Any) -> Outside:
    """What an iterator's pipeline keeps outside of it and of variables.

    Args:
        iterator: one whose position cannot be taken.

    Raises:
        UnsupportedStrategyError: the iterator is of a kind that has no position.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    ops = [op for dataset in _datasets(iterator) for op in _tf_internals.outside_state(dataset).others]
    places = list(dict.fromkeys(_tf_internals.place_of(op) for op in ops))
    shuffles = _has_unseeded_order(iterator)
    return Outside(holds=_holds(places), result=_result(places, shuffles), hint=_hint(places, shuffles))


def warn_of_unseeded_order(iterator: Any, name: str) -> None:
    """Warns if a resume gives later epochs another order than they would have had.

    Args:
        iterator: one whose position is saved.
        name: of the data, for people.

    Raises:
        UnsupportedStrategyError, InternalsChangedError: as for `describe_outside`.
    """
    if _has_unseeded_order(iterator):
        _log.warning(
            "The %s data is shuffled without a seed, so that each process draws another order. After a "
            "resume the running epoch goes on as it was, and later ones come in another order than they "
            "would have.\n"
            "HINT: Dataset.shuffle(..., seed=1), or keras.utils.set_random_seed(1) before the data set is "
            "made.",
            name,
        )


def warn_of_lost_cache(iterator: Any, name: str) -> None:
    """Warns if a resume fills a cache with other elements than the undisturbed run has in it.

    Args:
        iterator: one whose position is saved.
        name: of the data, for people.

    Raises:
        UnsupportedStrategyError, InternalsChangedError: as for `describe_outside`.
    """
    caches = (
        cache for dataset in _datasets(iterator) for cache in _tf_internals.caches_behind_shuffles(dataset)
    )
    if any(_tf_internals.epoch_counters(cache) or _tf_internals.changes_variables(cache) for cache in caches):
        _log.warning(
            "The %s data has a cache in memory between a shuffle and what gives other elements in each epoch "
            "(random numbers, or an order of tf_preempt.data). Once the shuffle has read the cache, no "
            "checkpoint holds it: a resumed run fills it anew in its next epoch, with other elements.\n"
            "HINT: cache before what draws random numbers; or Dataset.cache(file), with a file for each "
            "worker that outlives its process; or let tf_preempt.data order the examples, without a shuffle.",
            name,
        )


def _datasets(iterator: Any) -> list[Any]:
    found = [_tf_internals.dataset_behind(owned) for owned in _tf_internals.owned_iterators(iterator)]
    return [dataset for dataset in found if dataset is not None]


def _has_unseeded_order(iterator: Any) -> bool:
    """Says whether each process orders the elements anew: a shuffle or a random source has no seed."""
    nodes = (node for dataset in _datasets(iterator) for node in _tf_internals.walk_dataset(dataset))
    return any(_tf_internals.has_unseeded_shuffle(node) for node in nodes)


def _holds(places: list[_tf_internals.OpPlace]) -> str:
    names = {"random": "a stateful random op", "python": "a Python generator or function", "other": "state"}
    found = [
        f"{names[kind]} ({', '.join(sorted({str(place) for place in places if place.kind == kind}))})"
        for kind in names
        if any(place.kind == kind for place in places)
    ]
    return " and ".join(found) or "a Python generator or a stateful random op"


def _result(places: list[_tf_internals.OpPlace], shuffles: bool) -> str:
    without_seed = sorted({place.type for place in places if place.kind == "random" and not place.is_seeded})
    without_seed += ["shuffle"] if shuffles else []
    if without_seed:
        return f"not exact, for {', '.join(without_seed)} without a seed will give something else"
    if places and all(place.kind == "random" for place in places):
        return "exact, for random ops with a seed draw the same numbers again"
    return "exact only if the pipeline gives the same elements each time"


def _hint(places: list[_tf_internals.OpPlace], shuffles: bool) -> str:
    kinds = sorted({place.kind for place in places}, reverse=True) or ["python"]
    if "python" in kinds:  # the state of from_generator goes with its Python functions
        kinds = [kind for kind in kinds if kind != "other"]
    stateless = sorted(
        {place.stateless or "tf.random.stateless_*" for place in places if place.kind == "random"}
    )
    hints = [_HINTS[kind] % ", ".join(stateless) if kind == "random" else _HINTS[kind] for kind in kinds]
    return "; ".join([*hints, *(["give shuffles a seed"] if shuffles else [])])
