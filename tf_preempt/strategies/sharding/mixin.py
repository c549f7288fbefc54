"""How a data set is divided over workers: looked up, agreed on, said, and put into effect.

Each worker looks at its own data set (`shard_facts`), all tell all (`exchange`), and all come to the same
decision or the same error (`shard_plan`).  Whatever goes wrong before they have spoken is told, not raised: a
worker that left alone would let the others wait.  TensorFlow divides the data by a policy that works.
"""

from __future__ import annotations

import dataclasses
import logging
import secrets
import weakref
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.sharding.batches import check_divisible
from tf_preempt.strategies.sharding.exchange import exchange_texts, worker_count
from tf_preempt.strategies.sharding.explanation import ShardingExplanation
from tf_preempt.strategies.sharding.one_order import Reordering
from tf_preempt.strategies.sharding.shard_facts import Policy, SourceFacts, refusal, source_facts
from tf_preempt.strategies.sharding.shard_plan import needs_rebuilding, plan_shards

_log = logging.getLogger("tf_preempt")

# What was said, and of which data sets: Keras distributes one data set more than once.
_said: set[str] = set()
_said_of: weakref.WeakSet[tf.data.Dataset] = weakref.WeakSet()

_CHIEF = 0


def prepare(strategy: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same data set, ready to be divided over the replicas of `strategy`; to be called eagerly.

    With several workers, all of them must call it with their data sets in the same order.  The chief logs one
    line per data set: a warning if the workers do work in vain or the data may come out wrong.

    Args:
        strategy: of this package.
        dataset: as the user built it, batched by the global batch size.

    Returns:
        A data set with a policy under which its shards hold what they should, and with seeds that all workers
        share where it had none and that matters.

    Raises:
        ConfigError: the elements are no batches or cannot be divided; policy FILE was asked for, and the
            files do not suffice; looking at the data set of a worker fails, as where its data set of names of
            files does; or the workers' data sets differ.  The same on all workers.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    if strategy.num_replicas_in_sync == 1:
        return dataset
    workers = worker_count(strategy)
    if workers == 1:
        check_divisible(dataset.element_spec)
        return dataset
    look = _look(dataset, workers)
    message = f"{secrets.randbits(62) + 1} {look.facts.to_json()}"
    texts, me = exchange_texts(strategy, message)
    draw, rows = _parsed(texts)
    explanation = _planned(rows, look.error)
    if me == _CHIEF:
        _say(dataset, explanation)
    if look.reordering is not None and needs_rebuilding(rows, explanation):
        dataset = look.reordering.apply(draw)
    return _with_policy(dataset, explanation)


def explain(strategy: Any, dataset: tf.data.Dataset) -> ShardingExplanation:
    """How `prepare` would divide a data set, if all workers have one like this worker's; nothing is sent.

    Args:
        strategy: of this package.
        dataset: as the user built it.

    Raises:
        ConfigError: the elements are no batches or cannot be divided; policy FILE was asked for, and the
            files do not suffice; or looking at the data set fails.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    workers = worker_count(strategy)
    if strategy.num_replicas_in_sync > 1:
        check_divisible(dataset.element_spec)
    look = _look(dataset, workers)
    return _planned([look.facts] * workers, look.error)


class ShardingMixin:
    """Lets users ask a strategy how it divides their data."""

    def explain_sharding(self, dataset: tf.data.Dataset) -> ShardingExplanation:
        """Says how `experimental_distribute_dataset` would divide a data set over the workers.

        Use it to see before training which worker reads what.  Nothing is logged and nothing is sent: it may
        be called on one worker alone, and assumes that the others have a data set like this one.

        Example:
            >>> strategy.explain_sharding(dataset).files_per_worker
            (3, 2)

        Args:
            dataset: batched by the global batch size.

        Raises:
            ConfigError: what is given is no ``tf.data.Dataset``, its elements are no batches or cannot be
                divided, policy FILE was asked for, and the files do not suffice, or looking at the data set
                fails.
            InternalsChangedError: TensorFlow's private names have changed.
        """
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.ConfigError(
                f"explain_sharding was given {dataset!r} ({type(dataset).__name__}): expected a "
                "tf.data.Dataset.",
                hint="give the data set before it is distributed.",
            )
        return explain(self, dataset)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Look:
    """What this worker knows; how its data set gets an order that all share, if it has none; what failed."""

    facts: SourceFacts
    reordering: Reordering | None = None
    error: Exception | None = None


def _look(dataset: tf.data.Dataset, workers: int) -> _Look:
    try:
        check_divisible(dataset.element_spec)
        facts = source_facts(dataset, workers)
        if not _needs_one_order(facts, workers):
            return _Look(facts=facts)
        reordering = Reordering(dataset)
    except Exception as error:  # noqa: BLE001 - for all workers, which raise it together
        return _Look(facts=refusal(error), error=error)
    facts = dataclasses.replace(facts, obstacle=reordering.obstacle, repeated=reordering.repeated)
    return _Look(facts=facts, reordering=reordering)


def _planned(rows: list[SourceFacts], mine: Exception | None) -> ShardingExplanation:
    """The plan of all workers, or their error, which has this worker's own one, if any, as its cause."""
    try:
        return plan_shards(rows)
    except errors.ConfigError as together:
        if isinstance(mine, errors.InternalsChangedError):
            raise mine from None
        raise together from mine


def _needs_one_order(facts: SourceFacts, workers: int) -> bool:
    """Says whether the workers divide elements, and would see them in different orders."""
    if not facts.unseeded and not facts.unordered:
        return False
    try:
        explanation = plan_shards([facts] * workers)
        return explanation.agreed_seed or explanation.fixed_order
    except errors.ConfigError:  # which comes again, with what the other workers know
        return False


def _parsed(texts: list[str]) -> tuple[int, list[SourceFacts]]:
    """The chief's number, and what each worker knows."""
    numbers, facts = zip(*(text.split(" ", 1) for text in texts), strict=True)
    return int(numbers[_CHIEF]), [SourceFacts.from_json(one) for one in facts]


def _say(dataset: tf.data.Dataset, explanation: ShardingExplanation) -> None:
    """One line per data set; a warning, if there is anything to do about it, once per text."""
    if dataset in _said_of:
        return
    _said_of.add(dataset)
    hints = [] if explanation.hint is None else [f"HINT: {explanation.hint}"]
    text = "\n".join([f"Sharding of a data set: {explanation}", *hints, *explanation.warnings])
    worth_a_warning = explanation.warnings or explanation.hint
    level = logging.WARNING if worth_a_warning and text not in _said else logging.INFO
    _said.add(text)
    _log.log(level, text)


def _with_policy(dataset: tf.data.Dataset, explanation: ShardingExplanation) -> tf.data.Dataset:
    options = tf.data.Options()
    if explanation.policy == Policy.DATA:
        # TensorFlow's AUTO can divide the files of one source, find another without, and divide elements too.
        options.experimental_distribute.auto_shard_policy = Policy.DATA
    if explanation.fixed_order:
        options.deterministic = True
    return dataset.with_options(options)
