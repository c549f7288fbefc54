"""How a data set is divided over workers: looked up, agreed on, said, and put into effect."""

from __future__ import annotations

from tf_preempt.strategies.sharding.explanation import ShardingExplanation
from tf_preempt.strategies.sharding.mixin import ShardingMixin, explain, prepare

__all__ = ["ShardingExplanation", "ShardingMixin", "explain", "prepare"]
