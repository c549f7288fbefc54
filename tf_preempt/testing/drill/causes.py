"""Why two trainings of one program differ, likely: deduced from what differs and from what was warned of."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from tf_preempt.testing.drill.comparing import Comparison

__all__ = ["Cause", "likely_causes"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cause:
    """A likely cause.

    Args:
        name: short, for programs.
        text: what it is, how it shows, and what it was found in.
        cure: what to do.
        found: what the training's warnings name: callbacks with their attributes, ops with their lines.
        log: the file that has the whole warning; None: no warning told of it.
    """

    name: str
    text: str
    cure: str
    found: tuple[str, ...] = ()
    log: str | None = None


_DATA_CURE = (
    "tf_preempt.data.from_source for what Python reads, and seeded tf.data transformations, such as "
    "Dataset.shuffle(1000, seed=1)"
)
# Part of a warning that a training of tf_preempt logs -> what it means for a difference.
_WARNINGS = {
    "draws random numbers with ops whose state is in no checkpoint": Cause(
        name="stateful_random_op",
        text="a step draws random numbers with a stateful op, such as tf.random.normal: a program that is "
        "started again draws others",
        cure="keras.random with a keras.random.SeedGenerator that a layer holds, or tf.random.stateless_*",
    ),
    "data cannot be saved: the pipeline holds": Cause(
        name="data_position",
        text="the place in the data cannot be saved (a Python generator, a stateful random op): a program "
        "that is started again may see other examples",
        cure=_DATA_CURE,
    ),
    "cannot be saved: its pipeline holds": Cause(
        name="data_position",
        text="the place of a tracked iterator cannot be saved: it begins at its beginning again",
        cure=_DATA_CURE,
    ),
    "data is shuffled without a seed": Cause(
        name="unseeded_shuffle",
        text="the data is shuffled without a seed: each process, and so each life, draws another order",
        cure="Dataset.shuffle(..., seed=1), or keras.utils.set_random_seed(1) before the data set is made",
    ),
    "data has a cache in memory between a shuffle": Cause(
        name="lost_cache",
        text="the data has a cache in memory that no checkpoint holds: a program that is started again fills "
        "it with other elements",
        cure="cache before what draws random numbers, or Dataset.cache(file) with a file for each worker",
    ),
    "and no data iterator is tracked": Cause(
        name="untracked_data",
        text="a custom loop tracks no data iterator: its data begins at the beginning in each life",
        cure="iterator = handler.track(iter(dataset)) before the loop",
    ),
    "has no position of a data iterator": Cause(
        name="untracked_data",
        text="a data iterator was not tracked when the checkpoint was written, and begins at its beginning",
        cure="track the same iterators in the same order, or under the same names, in each life",
    ),
    "uses variables that change and that no checkpoint holds": Cause(
        name="unsaved_variable",
        text="variables that the training changes are in no checkpoint, and begin anew in each life",
        cure="make them attributes of the model or of its layers, or give them to the tf.train.Checkpoint",
    ),
    "come from one shuffle that orders each iteration anew": Cause(
        name="shared_shuffle",
        text="training and validation data come from one shuffle: the order of later epochs can differ",
        cure="Dataset.shuffle(..., reshuffle_each_iteration=False), or split before shuffling",
    ),
    "state of random generators that the program lacks": Cause(
        name="unsaved_seed_generator",
        text="a random generator is made later in a life that resumes, and begins afresh",
        cure="make generators before the training begins",
    ),
    "keeps state that is not saved": Cause(
        name="callback_state",
        text="a callback keeps state that is not saved, and begins afresh",
        cure="give it get_state(), which returns JSON values, and set_state(state)",
    ),
    "is not saved; after a resume it begins afresh": Cause(
        name="callback_state",
        text="the state of a callback cannot be saved, and it begins afresh",
        cure="let its get_state() return JSON values",
    ),
    "differed between replicas when the checkpoint was written": Cause(
        name="replica_state",
        text="a variable that each replica writes by itself is too large to be kept for each",
        cure="give the variable an aggregation, so that replicas write it together",
    ),
}
# For the parts above, where a warning of that kind names what it is about.
_NAMED = {
    "draws random numbers with ops whose state is in no checkpoint": r"%s \((?P<named>.*)\): a",
    "data cannot be saved: the pipeline holds": r"%s (?P<named>.*?)\. A resumed run",
    "cannot be saved: its pipeline holds": r"%s (?P<named>.*?)\. A resumed run",
    "data is shuffled without a seed": r"The (?P<named>\w+ data)(?= is)",
    "data has a cache in memory between a shuffle": r"The (?P<named>.* data)(?= has)",
    "has no position of a data iterator": r"%s '(?P<named>[^'\n]*)'",
    "uses variables that change and that no checkpoint holds": r"%s \((?P<named>.*)\): a resumed",
    "state of random generators that the program lacks": r"%s \((?P<named>.*)\): where",
    "keeps state that is not saved": r"The callback (?P<named>\S+) %s(?P<more> \(.*?\)): after",
    "is not saved; after a resume it begins afresh": r"of the callback (?P<named>\S+) %s(?P<more>: .*)",
    "differed between replicas when the checkpoint was written": r"Variable '(?P<named>[^'\n]*)' %s",
}
_DETERMINISM_WARNING = "Op determinism is off"
_DETERMINISM = Cause(
    name="nondeterministic_op",
    text="op determinism is off: kernels and data pipelines may do the same work in another order each time",
    cure="tf.config.experimental.enable_op_determinism() at the start of the program",
)
_UNSEEDED = Cause(
    name="unseeded",
    text="initial weights, the order of the data, NumPy or Python draw from a generator without a seed",
    cure="keras.utils.set_random_seed(1) at the start of the program, Dataset.shuffle(..., seed=1) and "
    "numpy.random.default_rng(1)",
)
_UNSAVED_SEED = Cause(
    name="unsaved_seed_generator",
    text="a seed generator differs: a layer draws from one that no checkpoint reaches, or in another order",
    cure="keep each keras.random.SeedGenerator as an attribute of a layer or of the model",
)
_STEPS = Cause(
    name="number_of_steps",
    text="the trainings took different numbers of steps: the data of a program that is started again end "
    "earlier or later",
    cure="data of a fixed length and order; the program must not skip data by itself after a restart",
)
_LOGS = Cause(
    name="logs_only",
    text="the variables are the same and only logs or the history differ: a callback or a metric computes "
    "them from something that is not saved",
    cure="give the callback get_state() and set_state(state), or let metrics keep their state in variables",
)
_PYTHON_STATE = Cause(
    name="python_state",
    text="something that the training depends on lives in the process and in no checkpoint: a counter or a "
    "generator in Python, a tf.Variable that the model does not track",
    cure="keep it in a variable of the model, or of the tf.train.Checkpoint",
)


def likely_causes(
    comparison: Comparison, logs: Mapping[str, str], *, repeatable: bool | None
) -> tuple[Cause, ...]:
    """Likely causes of a difference, the likeliest first.

    Args:
        comparison: of two trainings that differ.
        logs: what the disturbed one (or the second undisturbed one) printed, its warnings included: the text
            of each file, by its path.
        repeatable: True: two undisturbed trainings were the same.  False: `comparison` is of two undisturbed
            trainings.  None: it is not known.
    """
    warned = [told for words, cause in _WARNINGS.items() for told in _told(cause, words, logs)]
    determinism = list(_told(_DETERMINISM, _DETERMINISM_WARNING, logs))
    if repeatable is False:
        causes = [_UNSEEDED, *determinism] if _is_large(comparison) else [*determinism, _UNSEEDED]
        shuffles = [cause for cause in warned if cause.name == "unseeded_shuffle"]
        return _unique([*shuffles, *causes, *(cause for cause in warned if cause.name == "data_position")])
    causes = [*warned, *_from_what_differs(comparison)]
    if repeatable is None and not warned and comparison.last_alike is None:
        causes += [*determinism, _UNSEEDED]
    return _unique([*(causes or [_PYTHON_STATE]), *determinism])


def _told(cause: Cause, words: str, logs: Mapping[str, str]) -> Iterator[Cause]:
    """The cause with what the logs name, if a warning with these words is in one of them."""
    log = next((path for path, text in logs.items() if words in text), None)
    if log is None:
        return
    found = tuple(dict.fromkeys(name for text in logs.values() for name in _named(words, text)))
    text = f"{cause.text}; here: {', '.join(found)}" if found else cause.text
    yield dataclasses.replace(cause, text=text, found=found, log=log)


def _named(words: str, text: str) -> Iterator[str]:
    """What the warnings with these words are about, in their own words."""
    pattern = _NAMED.get(words)
    if pattern is None:
        return
    for line in (line for line in text.splitlines() if words in line):
        if match := re.search(pattern.replace("%s", re.escape(words)), line):
            yield match["named"] + (match.groupdict().get("more") or "")


def _from_what_differs(comparison: Comparison) -> list[Cause]:
    names = [difference["name"] for difference in comparison.differences]
    if comparison.fits_missing or any("steps in all" in name or name.endswith("iteration") for name in names):
        return [_STEPS]
    groups = set(comparison.groups)
    if groups and groups <= {"history", "callbacks", "metrics"}:
        return [_LOGS]
    return [_UNSAVED_SEED] if "seeds" in groups else []


def _is_large(comparison: Comparison) -> bool:
    """Says whether the weights differ by more than rounding in another order would make."""
    found = [one["max_ulp"] for one in comparison.differences if one["group"] == "weights"]
    return any(ulp is None or ulp > 1 << 16 for ulp in found)


def _unique(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Each name once: the first, which a warning tells of; but all that name different things."""
    kept: list[Cause] = []
    for cause in causes:
        alike = [one for one in kept if one.name == cause.name]
        if not alike or (cause.found and all(one.found != cause.found for one in alike)):
            kept.append(cause)
    return tuple(kept)
