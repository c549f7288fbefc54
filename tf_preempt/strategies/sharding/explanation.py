"""What a strategy says of how it divides a data set."""

from __future__ import annotations

import dataclasses

import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardingExplanation:
    """How a data set is divided over the workers.

    Args:
        policy: the ``tf.data.experimental.AutoShardPolicy`` in effect: never AUTO, but what AUTO comes to.
        requested: the policy of the data set's options.
        reason: why `policy` is in effect.
        workers: how many processes share the data set.
        files_per_worker: how many files each worker reads, in the order of the workers; None where files are
            not divided, or their number is not known.
        whole_pipeline_on_each_worker: every worker runs the pipeline for all elements; with policy DATA it
            then drops those of the others.
        batch_size: rows of a whole batch, over all replicas; None if unknown.
        batches: how many batches an epoch has before they are divided; None if unknown or endless.
        agreed_seed: an order that nobody gave a seed gets one that all workers share.
        repeated: with that seed, what functions of the data set order or choose by chance (a ``filter``, a
            shuffle that ``interleave`` builds) is the same in every epoch.
        fixed_order: ``deterministic=False``, of a step or of the options, is undone, so that all workers see
            one order.
        hint: how the workers could do less in vain; None if they do nothing in vain.
        warnings: what may be wrong with it, each with the cure.
    """

    policy: tf.data.experimental.AutoShardPolicy
    requested: tf.data.experimental.AutoShardPolicy
    reason: str
    workers: int
    files_per_worker: tuple[int, ...] | None = None
    whole_pipeline_on_each_worker: bool = False
    batch_size: int | None = None
    batches: int | None = None
    agreed_seed: bool = False
    repeated: bool = False
    fixed_order: bool = False
    hint: str | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers={self.workers!r}: expected 1 or more.")
        if self.files_per_worker is not None and len(self.files_per_worker) != self.workers:
            raise ValueError(
                f"files_per_worker={self.files_per_worker!r}: expected {self.workers} numbers, one per "
                "worker."
            )

    def __str__(self) -> str:
        asked = "" if self.policy == self.requested else f" ({self.requested.name} was asked for)"
        text = f"policy {self.policy.name}{asked}: {self.reason}"
        if self.agreed_seed:
            text += " Its shuffle has no seed: all workers use one that worker 0 drew."
        if self.repeated:
            text += " With it, what its functions choose or order by chance is the same in every epoch."
        if self.fixed_order:
            text += " deterministic=False is undone: all workers must see one order."
        return text
