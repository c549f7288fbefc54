"""Data sets read by index, which go on from the same example after a resume.

The order of the examples follows from the seed and the number of the epoch alone, so that a position is a few
numbers: nothing that was read is kept in a checkpoint, and going on at step 1,000,000 costs what step 1 does.
"""

from __future__ import annotations

from tf_preempt.data.arrays import from_arrays
from tf_preempt.data.source import from_source

__all__ = ["from_arrays", "from_source"]
