"""Who is in the cluster, and who am I: resolvers for ``tf.distribute``, one for each platform.

`auto` picks the one that fits.  TensorFlow is imported when a resolver is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Not lazy: a submodule's name is bound in its package when it is first imported, so the function has to
# follow, or `cluster_resolvers.auto` would be the module.  It imports TensorFlow when it is called.
from tf_preempt.cluster_resolvers.auto import auto

if TYPE_CHECKING:
    from tf_preempt.cluster_resolvers.local import LocalClusterResolver
    from tf_preempt.cluster_resolvers.slurm import SlurmClusterResolver
    from tf_preempt.cluster_resolvers.tf_config import TFConfigClusterResolver

__all__ = ["LocalClusterResolver", "SlurmClusterResolver", "TFConfigClusterResolver", "auto"]

_MODULES = {
    "LocalClusterResolver": "local",
    "SlurmClusterResolver": "slurm",
    "TFConfigClusterResolver": "tf_config",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
