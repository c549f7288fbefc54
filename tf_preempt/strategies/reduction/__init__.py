"""``Strategy.reduce``: over replicas and elements, of nests, exact for every number dtype."""

from __future__ import annotations

from tf_preempt.strategies.reduction.mixin import ReduceMixin

__all__ = ["ReduceMixin"]
