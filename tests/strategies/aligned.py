"""Arrays whose memory TensorFlow can use as it is."""

from __future__ import annotations

import numpy as np

_ALIGNMENT_BYTES = 64


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy of `array` that begins at a multiple of 64 bytes: only such memory is shared with tensors."""
    memory = np.empty(array.nbytes + _ALIGNMENT_BYTES, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT_BYTES
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
