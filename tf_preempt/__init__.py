"""Preempted ``tf.distribute`` training that ends with exactly the weights of an undisturbed run.

Importing this package imports neither TensorFlow nor Keras: public names are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_preempt._version import __version__

if TYPE_CHECKING:
    from tf_preempt import callbacks, cluster_resolvers, data, errors, strategies, termination, testing
    from tf_preempt.checkpointing.handler import PreemptionCheckpointHandler
    from tf_preempt.errors import TfPreemptError
    from tf_preempt.termination.config import TerminationConfig

__all__ = [
    "PreemptionCheckpointHandler",
    "TerminationConfig",
    "TfPreemptError",
    "callbacks",
    "cluster_resolvers",
    "data",
    "errors",
    "strategies",
    "termination",
    "testing",
    "__version__",
]

_SUBPACKAGES = ("callbacks", "cluster_resolvers", "data", "errors", "strategies", "termination", "testing")
_NAMES = {
    "PreemptionCheckpointHandler": "tf_preempt.checkpointing.handler",
    "TerminationConfig": "tf_preempt.termination.config",
    "TfPreemptError": "tf_preempt.errors",
}


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"tf_preempt.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'tf_preempt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
