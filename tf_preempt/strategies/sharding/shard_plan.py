"""How workers share a data set: decided from what each of them knows of it, the same on all."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.sharding.explanation import ShardingExplanation
from tf_preempt.strategies.sharding.shard_facts import Policy, SourceFacts

_FILES_HINT = (
    "write at least one file per worker, or set options.experimental_distribute.auto_shard_policy = "
    "tf.data.experimental.AutoShardPolicy.DATA with dataset.with_options."
)
_SEED_HINT = (
    "call keras.utils.set_random_seed (or tf.random.set_seed) with one number on all workers before the data "
    "set is built or `fit` is called, or give every shuffle a seed; for arrays, shuffle=False works too."
)
_SAME_DATA_HINT = (
    "let all workers build the data set alike; where each has data of its own, use "
    "strategy.distribute_datasets_from_function, or policy OFF."
)
_SAME_SEEDS_HINT = (
    "give shuffles the same seed on all workers, or none: the workers then agree on one. Their own seeds fit "
    "strategy.distribute_datasets_from_function."
)
_FROM_FUNCTION_HINT = "strategy.distribute_datasets_from_function lets each worker build its own part only"
_ORDER_HINT = "leave out deterministic=False in map and interleave."
_REPEATED_WARNING = (
    "the data set is sharded by elements, and all workers must see one order: what its functions choose or "
    "order by chance (in filter, in a function that calls another, in data sets that a function builds) was "
    "new in every epoch, and is now the same in every epoch.\nHINT: shuffle outside of functions, and let "
    "filter decide by numbers that come with the elements: dataset.zip(tf.data.Dataset.random("
    "rerandomize_each_iteration=True))."
)


def plan_shards(rows: Sequence[SourceFacts]) -> ShardingExplanation:
    """Decides how to shard, the same on every worker.

    Args:
        rows: what each worker knows of its data set, in the order of the workers; one or more.

    Raises:
        ConfigError: a worker refuses its data set; policy FILE was asked for, and the files do not suffice;
            or the workers' data sets differ.
    """
    _check_refusals(rows)
    _check_enough_files(rows)
    _check_alike(rows)
    mine, workers = rows[0], len(rows)
    if workers == 1:
        return _explanation(rows, mine.policy, "there is one worker, which reads everything.")
    if mine.policy == Policy.OFF:
        return _explanation(
            rows, Policy.OFF, f"nothing is divided: {_each_reads_all(workers)}", whole_pipeline=True
        )
    if mine.policy == Policy.HINT:
        return _plan_hint(rows)
    if mine.policy == Policy.FILE or (mine.policy == Policy.AUTO and _enough_files(rows)):
        return _plan_files(rows)
    return _plan_elements(rows)


def needs_rebuilding(rows: Sequence[SourceFacts], plan: ShardingExplanation) -> bool:
    """Says whether data sets are to be built again with one order, for which nothing may be in the way.

    Args:
        rows: what each worker knows of its data set.
        plan: what `plan_shards` made of it.
    """
    return _obstacle(rows) is None and (plan.agreed_seed or plan.fixed_order)


def _each_reads_all(workers: int) -> str:
    return (
        f"each of the {workers} workers reads all of the data set, so that an epoch holds it {workers} times."
    )


def _plan_hint(rows: Sequence[SourceFacts]) -> ShardingExplanation:
    workers = len(rows)
    if rows[0].hinted:
        reason = (
            f"the data set says itself, with shard(SHARD_HINT, SHARD_HINT), where {workers} workers part."
        )
        return _explanation(rows, Policy.HINT, reason, by_elements=True)
    reason = f"no shard(SHARD_HINT, SHARD_HINT) is in the data set: {_each_reads_all(workers)}"
    warning = (
        "policy HINT without a hint divides nothing.\nHINT: add the shard where the workers are to part."
    )
    return _explanation(rows, Policy.HINT, reason, whole_pipeline=True, warnings=(warning,))


def _plan_files(rows: Sequence[SourceFacts]) -> ShardingExplanation:
    workers, counts = len(rows), rows[0].files or ()
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        reason = f"the files are divided over {workers} workers; how many there are is not known."
        return _explanation(rows, Policy.FILE, reason)
    shares = tuple(sum(share(count, workers, worker) for count in known) for worker in range(workers))
    reason = f"{sum(known)} files are divided over {workers} workers: {', '.join(map(str, shares))}."
    return _explanation(rows, Policy.FILE, reason, files_per_worker=shares)


def share(count: int, workers: int, worker: int) -> int:
    """How many of `count` things one of the workers gets when they are dealt out in turn."""
    return (count - worker + workers - 1) // workers


def _plan_elements(rows: Sequence[SourceFacts]) -> ShardingExplanation:
    mine, workers = rows[0], len(rows)
    hint: str | None = f"{_FROM_FUNCTION_HINT}."
    if mine.by_index:
        why = "for it is read by index, in one order of all workers"
        hint = None
    elif mine.policy == Policy.DATA:
        why = "as was asked for"
    elif mine.files is None:
        why = "for it cannot be sharded by files"
    else:
        why = f"for it reads {_files_text(rows)}, fewer than there are workers"
        hint = f"{_FROM_FUNCTION_HINT}; or write at least one file per worker."
    reason = (
        f"elements are divided, {why}. Each of the {workers} workers runs the whole pipeline and drops "
        f"{workers - 1} of {workers} elements."
    )
    return _explanation(rows, Policy.DATA, reason, whole_pipeline=True, by_elements=True, hint=hint)


def _explanation(
    rows: Sequence[SourceFacts],
    policy: tf.data.experimental.AutoShardPolicy,
    reason: str,
    *,
    files_per_worker: tuple[int, ...] | None = None,
    whole_pipeline: bool = False,
    by_elements: bool = False,
    hint: str | None = None,
    warnings: tuple[str, ...] = (),
) -> ShardingExplanation:
    if by_elements:
        _check_one_order(rows)
        warnings += _order_warnings(rows)
    agreed_seed = by_elements and any(row.unseeded for row in rows) and _obstacle(rows) is None
    repeated = agreed_seed and any(row.repeated for row in rows)
    if repeated:
        warnings += (_REPEATED_WARNING,)
    return ShardingExplanation(
        policy=policy,
        requested=rows[0].policy,
        reason=reason,
        workers=len(rows),
        files_per_worker=files_per_worker,
        whole_pipeline_on_each_worker=whole_pipeline,
        batch_size=rows[0].batch_size,
        batches=rows[0].batches,
        agreed_seed=agreed_seed,
        repeated=repeated,
        fixed_order=by_elements and any(_order_can_be_fixed(row, rows) for row in rows),
        hint=hint,
        warnings=warnings,
    )


def _order_warnings(rows: Sequence[SourceFacts]) -> tuple[str, ...]:
    obstacle = _obstacle(rows)
    if obstacle is None:
        return ()
    found = []
    for disturbed, what, hint in (
        (any(row.unseeded for row in rows), "is shuffled without a seed", _SEED_HINT),
        (any(row.unordered for row in rows), "has a step with deterministic=False", _ORDER_HINT),
    ):
        if disturbed:
            found.append(
                f"the data set is sharded by elements, but it {what}, and the workers cannot agree on one "
                f"order, for {obstacle}: workers see some elements twice and others never.\nHINT: {hint}"
            )
    return tuple(found)


def _obstacle(rows: Sequence[SourceFacts]) -> str | None:
    return next((row.obstacle for row in rows if row.obstacle is not None), None)


def _order_can_be_fixed(row: SourceFacts, rows: Sequence[SourceFacts]) -> bool:
    return row.free_order or (row.unordered and _obstacle(rows) is None)


def _enough_files(rows: Sequence[SourceFacts]) -> bool:
    return all(row.files is not None and not _short(row, len(rows)) for row in rows)


def _short(row: SourceFacts, workers: int) -> bool:
    return row.fewest_files is not None and row.fewest_files < workers


def _files_text(rows: Sequence[SourceFacts]) -> str:
    counts = [row.fewest_files for row in rows if row.fewest_files is not None]
    return f"{min(counts)} file(s)"


def _check_refusals(rows: Sequence[SourceFacts]) -> None:
    for worker, row in enumerate(rows):
        if row.refused is not None:
            message, _, hint = row.refused.partition("\nHINT: ")
            where = f"worker {worker}: " if len(rows) > 1 else ""
            raise errors.ConfigError(f"{where}{message}", hint=hint or None)


def _check_enough_files(rows: Sequence[SourceFacts]) -> None:
    workers = len(rows)
    for worker, row in enumerate(rows):
        if row.policy != Policy.FILE or workers == 1:
            continue
        if row.files is None:
            raise errors.ConfigError(
                f"auto_shard_policy = FILE: TensorFlow finds no files to divide in the data set of worker "
                f"{worker}, whose elements are {row.element_spec}; expected only sources such as "
                "TFRecordDataset, TextLineDataset and FixedLengthRecordDataset.",
                hint=_FILES_HINT,
            )
        if _short(row, workers):
            raise errors.ConfigError(
                f"auto_shard_policy = FILE: the data set reads {row.fewest_files} file(s) on worker "
                f"{worker}, but there are {workers} workers, expected one file per worker or more.",
                hint=_FILES_HINT,
            )


def _check_alike(rows: Sequence[SourceFacts]) -> None:
    _check_same(rows, "policy", "auto_shard_policy", _SAME_DATA_HINT)
    _check_same(rows, "element_spec", "elements", _SAME_DATA_HINT)
    if rows[0].policy not in (Policy.OFF, Policy.HINT):
        _check_same(rows, "files", "numbers of files", _SAME_DATA_HINT)
        _check_same(rows, "batch_size", "batch size", _SAME_DATA_HINT)
        _check_same(rows, "batches", "number of batches", _SAME_DATA_HINT)


def _check_one_order(rows: Sequence[SourceFacts]) -> None:
    """Where elements are divided, other seeds are other orders, of which workers would take the same."""
    _check_same(rows, "seeds", "seeds of shuffles", _SAME_SEEDS_HINT)
    _check_same(rows, "unseeded", "shuffles: without a seed", _SAME_SEEDS_HINT)


def _check_same(rows: Sequence[SourceFacts], name: str, what: str, hint: str) -> None:
    found = [getattr(row, name) for row in rows]
    other = next((worker for worker, value in enumerate(found) if value != found[0]), None)
    if other is not None:
        raise errors.ConfigError(
            f"the workers' data sets differ in their {what}: {_shown(found[0])} on worker 0, "
            f"{_shown(found[other])} on worker {other}; expected the same on all workers.",
            hint=hint,
        )


def _shown(value: object) -> str:
    if isinstance(value, Policy):
        return str(value.name)
    return "none" if value is None or value == "" else str(value)
