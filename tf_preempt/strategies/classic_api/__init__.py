"""The names that strategies had in TensorFlow 1.15."""

from __future__ import annotations

from tf_preempt.strategies.classic_api.mixin import ClassicApiMixin

__all__ = ["ClassicApiMixin"]
