"""Callbacks for ``keras.Model.fit``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_preempt.callbacks.on_chief import OnChief
    from tf_preempt.callbacks.preemption_checkpoint import PreemptionCheckpoint

__all__ = ["OnChief", "PreemptionCheckpoint"]

_NAMES = {
    "OnChief": "tf_preempt.callbacks.on_chief",
    "PreemptionCheckpoint": "tf_preempt.callbacks.preemption_checkpoint",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
