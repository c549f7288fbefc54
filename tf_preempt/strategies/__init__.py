"""How replicas train: ``tf.distribute`` strategies that Keras 3 and resuming can rely on.

Importing this package does not import TensorFlow: strategies are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not lazy: the import system binds a submodule's name in its package once, when it is first imported; the
# function must come after that, or `strategies.auto` would be the module.  It imports TensorFlow when called.
from tf_preempt.strategies.auto import auto

if TYPE_CHECKING:
    from tf_preempt.strategies.mirrored import MirroredStrategy
    from tf_preempt.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy

__all__ = ["MirroredStrategy", "MultiWorkerMirroredStrategy", "auto"]

_HOMES = {"MirroredStrategy": "mirrored", "MultiWorkerMirroredStrategy": "multi_worker_mirrored"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"tf_preempt.strategies.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'tf_preempt.strategies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
