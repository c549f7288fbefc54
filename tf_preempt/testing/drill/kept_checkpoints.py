"""Keeps checkpoints that the program would delete, to tell later where two trainings have parted."""

from __future__ import annotations

import os

from tf_preempt.checkpointing.manifest import read_manifest
from tf_preempt.errors import CheckpointFormatError

__all__ = ["KeptCheckpoints"]

_MOST_BYTES = 4 << 30


class KeptCheckpoints:
    """Gives the files of checkpoints a second name, in a folder of their own, until they are many bytes.

    What cannot be kept (it was deleted already, or the file system knows no second names) is left out: the
    last checkpoints are compared in any case.

    Args:
        directory: the checkpoint directory.
        folder: where they are kept; must not exist.
        most_bytes: of all that is kept.
    """

    def __init__(self, directory: str, folder: str, *, most_bytes: int = _MOST_BYTES) -> None:
        self._directory = directory
        self._folder = folder
        self._bytes_left = most_bytes
        os.makedirs(folder)

    def keep(self, prefix: str) -> bool:
        """Keeps a committed checkpoint, and says whether it could.

        Args:
            prefix: its name, such as ``"ckpt-7"``.
        """
        try:
            manifest = read_manifest(self._directory, f"{prefix}.manifest.json")
            size = sum(record.bytes for record in manifest.files)
            if size > self._bytes_left:
                return False
            # The manifest last: without it, the files are no checkpoint.
            for name in (*(record.name for record in manifest.files), manifest.name):
                target = os.path.join(self._folder, name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.link(os.path.join(self._directory, name), target)
        except (OSError, CheckpointFormatError):
            return False
        self._bytes_left -= size
        return True
