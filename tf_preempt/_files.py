"""Paths of checkpoint directories: local ones through ``os``, others through ``tf.io.gfile``.

TensorFlow is imported only for a path with a URL scheme (``gs://``, ``ram://``), so that everything which
reads a local directory works without it.  Not all file systems can append or rename atomically: the two
functions that need more than a plain write (`write_atomic`, `append_text`) say what they do on each.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zlib
from typing import Any

_URL = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")
_CHUNK_BYTES = 1 << 20


def is_url(path: str) -> bool:
    """Says whether `path` has a URL scheme and so is opened through ``tf.io.gfile``."""
    return bool(_URL.match(path))


def _gfile() -> Any:
    import tensorflow as tf

    return tf.io.gfile


def join(directory: str, *names: str) -> str:
    """Joins path components with ``/`` for URLs and the platform's separator otherwise."""
    if is_url(directory):
        return "/".join([directory.rstrip("/"), *names])
    return os.path.join(directory, *names)


def exists(path: str) -> bool:
    """Says whether a file or directory is there."""
    return bool(_gfile().exists(path)) if is_url(path) else os.path.exists(path)


def make_dirs(path: str) -> None:
    """Creates a directory and its parents; one that exists is fine.

    Raises:
        OSError: it cannot be created (for URLs TensorFlow's own error).
    """
    if is_url(path):
        _gfile().makedirs(path)
    else:
        os.makedirs(path, exist_ok=True)


def list_dir(path: str) -> list[str]:
    """Names in a directory, sorted; a directory that does not exist has none.

    Raises:
        OSError: it cannot be listed (for URLs TensorFlow's own error).
    """
    if is_url(path):
        gfile = _gfile()
        return sorted(name.rstrip("/") for name in gfile.listdir(path)) if gfile.isdir(path) else []
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def size_bytes(path: str) -> int:
    """Size of a file.

    Raises:
        OSError: there is no such file (for URLs TensorFlow's ``NotFoundError``).
    """
    return int(_gfile().stat(path).length) if is_url(path) else os.path.getsize(path)


def read_bytes(path: str) -> bytes:
    """The whole content of a file.

    Raises:
        OSError: it cannot be read (for URLs TensorFlow's own error).
    """
    if is_url(path):
        with _gfile().GFile(path, "rb") as file:
            return bytes(file.read())
    with open(path, "rb") as file:
        return file.read()


def crc32_hex(path: str) -> str:
    """CRC-32 of a file's content, as eight hexadecimal digits.

    Raises:
        OSError: it cannot be read (for URLs TensorFlow's own error).
    """
    checksum = 0
    opened: Any = _gfile().GFile(path, "rb") if is_url(path) else open(path, "rb")  # noqa: SIM115
    with opened as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum = zlib.crc32(chunk, checksum)
    return f"{checksum:08x}"


def write_atomic(path: str, content: bytes) -> None:
    """Writes a file so that readers see all of it or nothing of it, also after a crash.

    Local: temporary name in the same directory, flushed to disk, renamed.  URL: one object write, which
    object stores make visible when complete.

    Raises:
        OSError: it cannot be written (for URLs TensorFlow's own error); what was there before is untouched.
    """
    if is_url(path):
        with _gfile().GFile(path, "wb") as file:
            file.write(content)
        return
    directory, name = os.path.split(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".tmp", dir=directory or ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise
    _flush_directory(directory or ".")


def _umask() -> int:
    """This process's file mode mask; mkstemp ignores it, and other users read checkpoints too."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return 0o022


def _flush_directory(directory: str) -> None:
    """Makes a rename durable where the file system allows a directory to be flushed."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems refuse; the rename itself has happened
    finally:
        os.close(descriptor)


def remove(path: str) -> None:
    """Deletes a file; one that is not there is fine.

    Raises:
        OSError: it is there and cannot be deleted (for URLs TensorFlow's own error).
    """
    if is_url(path):
        gfile = _gfile()
        if gfile.exists(path):
            gfile.remove(path)
        return
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_tree(path: str) -> None:
    """Deletes a directory and all in it; one that is not there is fine, and so is a local file that stays.

    Raises:
        tf.errors.OpError: `path` is a URL, and something of it cannot be deleted.
    """
    if is_url(path):
        gfile = _gfile()
        if gfile.isdir(path):
            gfile.rmtree(path)
        return
    shutil.rmtree(path, ignore_errors=True)


def move(source: str, target: str) -> None:
    """Renames a file or a directory, replacing a file that is at `target`.

    Raises:
        OSError: `source` does not exist or cannot be moved (for URLs TensorFlow's own error).
    """
    if is_url(source):
        _gfile().rename(source, target, overwrite=True)
    else:
        os.replace(source, target)
