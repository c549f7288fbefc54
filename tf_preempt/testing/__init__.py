"""What those need who test their training programs: does an interrupted one end as an undisturbed one?"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tf_preempt.testing.metadata_server import FakeMetadataServer
    from tf_preempt.testing.resume_equivalence import assert_resume_equivalent

__all__ = ["assert_resume_equivalent", "FakeMetadataServer"]

_NAMES = {
    "assert_resume_equivalent": "tf_preempt.testing.resume_equivalence",
    "FakeMetadataServer": "tf_preempt.testing.metadata_server",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
