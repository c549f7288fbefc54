from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies.sharding.explanation import ShardingExplanation
from tf_preempt.strategies.sharding.shard_facts import SourceFacts
from tf_preempt.strategies.sharding.shard_plan import needs_rebuilding, plan_shards, share

Policy = tf.data.experimental.AutoShardPolicy


def facts(policy: Policy = Policy.AUTO, **fields: Any) -> SourceFacts:
    return SourceFacts(policy=policy, **fields)


@pytest.mark.parametrize(
    ("of_each", "policy", "whole", "files"),
    [
        (facts(files=(3,)), Policy.FILE, False, (1, 1, 1)),
        (facts(files=(7,)), Policy.FILE, False, (3, 2, 2)),
        (facts(files=(7, 4)), Policy.FILE, False, (5, 3, 3)),
        (facts(files=(7, None)), Policy.FILE, False, None),
        (facts(files=(None,)), Policy.FILE, False, None),
        (facts(Policy.FILE, files=(3,)), Policy.FILE, False, (1, 1, 1)),
        (facts(files=(2,)), Policy.DATA, True, None),
        (facts(files=(7, 2)), Policy.DATA, True, None),
        (facts(files=None), Policy.DATA, True, None),
        (facts(Policy.DATA), Policy.DATA, True, None),
        (facts(Policy.HINT, hinted=True), Policy.HINT, False, None),
        (facts(Policy.HINT), Policy.HINT, True, None),
        (facts(Policy.OFF), Policy.OFF, True, None),
    ],
)
def test_policy_for_three_workers(of_each: SourceFacts, policy: Policy, whole: bool, files: Any) -> None:
    plan = plan_shards([of_each] * 3)
    assert (plan.policy, plan.whole_pipeline_on_each_worker, plan.files_per_worker) == (policy, whole, files)
    assert (plan.requested, plan.workers) == (of_each.policy, 3)


@pytest.mark.parametrize("policy", Policy)
def test_one_worker_reads_everything_by_any_policy(policy: Policy) -> None:
    plan = plan_shards([facts(policy, unseeded=True)])
    assert "there is one worker" in plan.reason
    assert not plan.agreed_seed
    assert not plan.warnings


@pytest.mark.parametrize(
    ("of_each", "reason"),
    [
        (facts(files=(2,)), "it reads 2 file(s), fewer than there are workers"),
        (facts(), "it cannot be sharded by files"),
        (facts(Policy.DATA), "as was asked for"),
        (facts(), "Each of the 3 workers runs the whole pipeline and drops 2 of 3 elements."),
        (facts(files=(7,)), "7 files are divided over 3 workers: 3, 2, 2."),
        (facts(files=(7, None)), "how many there are is not known"),
        (facts(Policy.OFF), "each of the 3 workers reads all of the data set"),
        (facts(Policy.HINT), "no shard(SHARD_HINT, SHARD_HINT) is in the data set"),
        (facts(Policy.HINT, hinted=True), "the data set says itself"),
    ],
)
def test_reason_for_three_workers(of_each: SourceFacts, reason: str) -> None:
    assert reason in str(plan_shards([of_each] * 3))


@pytest.mark.parametrize(
    ("of_each", "hint"),
    [
        (
            facts(files=(2,)),
            "distribute_datasets_from_function lets each worker build its own part only; or wri",
        ),
        (facts(), "distribute_datasets_from_function lets each worker build its own part only."),
        (facts(files=(7,)), None),
        (facts(Policy.OFF), None),
    ],
)
def test_hint_where_work_is_done_in_vain(of_each: SourceFacts, hint: str | None) -> None:
    found = plan_shards([of_each] * 3).hint
    assert found is None if hint is None else hint in str(found)


ORDERS = {
    "seed": facts(unseeded=True),
    "seed, files too few": facts(files=(1,), unseeded=True),
    "seed, hinted": facts(Policy.HINT, hinted=True, unseeded=True),
    "seed, whole": facts(Policy.OFF, unseeded=True),
    "seed, not hinted": facts(Policy.HINT, unseeded=True),
    "seed, files": facts(files=(3,), unseeded=True, unordered=True, free_order=True),
    "seed, obstacle": facts(unseeded=True, obstacle="it is too large"),
    "step": facts(unordered=True),
    "step, obstacle": facts(unordered=True, obstacle="it is too large"),
    "options": facts(free_order=True),
    "seed, repeated": facts(unseeded=True, repeated=True),
    "seed, repeated, files": facts(files=(3,), unseeded=True, repeated=True),
    "options, step, obstacle": facts(unordered=True, free_order=True, obstacle="it is too large"),
    "options, obstacle": facts(unseeded=True, free_order=True, obstacle="it is too large"),
}


@pytest.mark.parametrize(
    ("case", "agreed", "fixed", "warned"),
    [
        ("seed", True, False, []),
        ("seed, files too few", True, False, []),
        ("seed, hinted", True, False, []),
        ("seed, whole", False, False, []),
        ("seed, not hinted", False, False, ["policy HINT without a hint"]),
        ("seed, files", False, False, []),
        ("seed, repeated", True, False, ["is now the same in every epoch"]),
        ("seed, repeated, files", False, False, []),
        ("seed, obstacle", False, False, ["shuffled without a seed"]),
        ("step", False, True, []),
        ("step, obstacle", False, False, ["a step with deterministic=False"]),
        ("options", False, True, []),
        ("options, obstacle", False, True, ["shuffled without a seed"]),
    ],
)
def test_one_order_where_elements_are_divided(
    case: str, agreed: bool, fixed: bool, warned: list[str]
) -> None:
    plan = plan_shards([ORDERS[case]] * 3)
    assert (plan.agreed_seed, plan.fixed_order) == (agreed, fixed)
    assert [start in text for start, text in zip(warned, plan.warnings, strict=True)] == [True] * len(warned)
    assert all("\nHINT: " in text for text in plan.warnings)


@pytest.mark.parametrize(
    ("case", "rebuilt"),
    [
        ("seed", True),
        ("seed, hinted", True),
        ("seed, whole", False),
        ("seed, files", False),
        ("seed, obstacle", False),
        ("step", True),
        ("step, obstacle", False),
        ("options, obstacle", False),
        ("options, step, obstacle", False),
    ],
)
def test_what_has_an_obstacle_is_not_built_again(case: str, rebuilt: bool) -> None:
    rows = [ORDERS[case]] * 3
    assert needs_rebuilding(rows, plan_shards(rows)) is rebuilt


def test_what_has_an_obstacle_on_one_worker_is_built_again_on_none() -> None:
    rows = [facts(unseeded=True, free_order=True), ORDERS["options, obstacle"]]
    assert not needs_rebuilding(rows, plan_shards(rows))


def test_an_obstacle_on_one_worker_is_one_for_all() -> None:
    plan = plan_shards([facts(unseeded=True), facts(unseeded=True, obstacle="it is too large")])
    assert not plan.agreed_seed
    assert "for it is too large" in plan.warnings[0]


FEW = "auto_shard_policy = FILE: the data set reads 1 file(s) on worker"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([facts(Policy.FILE, files=(1,))] * 2, f"{FEW} 0, but there are 2 workers"),
        ([facts(Policy.FILE, files=(2,)), facts(Policy.FILE, files=(1,))], f"{FEW} 1, but there are 2"),
        ([facts(Policy.FILE, files=(2, 1))] * 2, f"{FEW} 0"),
        ([facts(Policy.FILE)] * 2, "FILE: TensorFlow finds no files to divide in the data set of worker 0"),
        (
            [facts(), facts(Policy.OFF)],
            "differ in their auto_shard_policy: AUTO on worker 0, OFF on worker 1",
        ),
        ([facts(files=(2,)), facts(files=(3,))], "numbers of files: (2,) on worker 0, (3,) on worker 1"),
        ([facts(files=(2,)), facts()], "numbers of files: (2,) on worker 0, none on worker 1"),
        ([facts(), facts(), facts(element_spec="x")], "elements: none on worker 0, x on worker 2"),
        ([facts(batch_size=2), facts(batch_size=4)], "batch size: 2 on worker 0, 4 on worker 1"),
        ([facts(batches=2), facts()], "number of batches: 2 on worker 0, none on worker 1"),
        ([facts(seeds="(1, 2)"), facts(seeds="(1, 3)")], "seeds of shuffles: (1, 2) on worker 0, (1, 3) on"),
        ([facts(unseeded=True), facts()], "shuffles: without a seed: True on worker 0, False on worker 1"),
        ([facts(), facts(refused="no batches\nHINT: batch")], "worker 1: no batches\nHINT: batch"),
    ],
)
def test_workers_refuse_together(rows: list[SourceFacts], message: str) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        plan_shards(rows)
    assert message in str(raised.value)
    assert "HINT: " in str(raised.value)


@pytest.mark.parametrize(
    "rows",
    [
        [facts(Policy.OFF, batches=2, batch_size=4), facts(Policy.OFF, batches=3, batch_size=2)],
        [facts(Policy.HINT, batches=2), facts(Policy.HINT, batches=3)],
        [facts(files=(2,), seeds="(1, 2)"), facts(files=(2,), seeds="(1, 3)", unseeded=True)],
        [facts(Policy.FILE)],
    ],
)
def test_workers_may_differ_where_nothing_is_lost(rows: list[SourceFacts]) -> None:
    assert plan_shards(rows).workers == len(rows)


@pytest.mark.parametrize("count", range(7))
@pytest.mark.parametrize("workers", range(1, 5))
def test_shares_are_those_of_dealing_out_in_turn(count: int, workers: int) -> None:
    dealt = [len(range(worker, count, workers)) for worker in range(workers)]
    assert [share(count, workers, worker) for worker in range(workers)] == dealt


def test_explanation_shows_what_was_asked_for_only_if_it_is_something_else() -> None:
    assert str(plan_shards([facts()] * 2)).startswith("policy DATA (AUTO was asked for): ")
    assert str(plan_shards([facts(Policy.DATA)] * 2)).startswith("policy DATA: ")


def test_explanation_tells_of_agreed_seed_and_fixed_order() -> None:
    text = str(plan_shards([facts(unseeded=True, free_order=True)] * 2))
    assert "no seed: all workers use one that worker 0 drew" in text
    assert "deterministic=False is undone" in text
    assert "in every epoch" not in text


def test_explanation_tells_of_chance_that_is_the_same_in_every_epoch() -> None:
    plan = plan_shards([facts(unseeded=True, repeated=True)] * 2)
    assert plan.repeated
    assert "choose or order by chance is the same in every epoch" in str(plan)


@pytest.mark.parametrize(("workers", "files"), [(0, None), (2, (1,))])
def test_explanation_refuses_what_cannot_be(workers: int, files: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        ShardingExplanation(
            policy=Policy.FILE, requested=Policy.FILE, reason="", workers=workers, files_per_worker=files
        )
