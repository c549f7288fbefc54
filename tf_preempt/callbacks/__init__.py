"""Callbacks for ``keras.Model.fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_preempt.callbacks.preemption_checkpoint import PreemptionCheckpoint

__all__ = ["PreemptionCheckpoint"]


def __getattr__(name: str) -> Any:
    if name == "PreemptionCheckpoint":
        from tf_preempt.callbacks.preemption_checkpoint import PreemptionCheckpoint

        return PreemptionCheckpoint
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
