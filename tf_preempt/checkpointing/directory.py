"""Which directory checkpoints go to, and whether all workers may use it."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping

from tf_preempt import _files
from tf_preempt.errors import (
    ConfigError,
    DirectoryInUseError,
    DirectoryNotGivenError,
    DirectoryNotSharedError,
    DirectoryNotWritableError,
)

OVERRIDE = "TF_PREEMPT_DIR_OVERRIDE"
DEFAULTS = ("TF_PREEMPT_DIR", "AIP_CHECKPOINT_DIR")


def resolve_directory(
    directory: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ
) -> str:
    """The checkpoint directory: the argument, else the environment's.

    Args:
        directory: as given in the program; a local path or a URL that ``tf.io.gfile`` knows.
        environ: where to look.

    Raises:
        ConfigError: `directory` is no path.
        DirectoryNotGivenError: neither the argument nor a variable says.

    Environment:
        TF_PREEMPT_DIR_OVERRIDE: wins over the argument.
        TF_PREEMPT_DIR, AIP_CHECKPOINT_DIR: used in this order when there is no argument.

    References:
        https://cloud.google.com/vertex-ai/docs/training/code-requirements (AIP_CHECKPOINT_DIR)
    """
    override = environ.get(OVERRIDE)
    if override:
        return _absolute(override)
    if directory is not None and not isinstance(directory, str | os.PathLike):
        raise ConfigError(
            f"directory={directory!r}: expected a path (str or os.PathLike), "
            f"received {type(directory).__name__}.",
            hint='for example "runs/7" or pathlib.Path("runs/7")',
        )
    if directory is not None and str(directory):
        return _absolute(os.fspath(directory))
    for name in DEFAULTS:
        if environ.get(name):
            return _absolute(environ[name])
    raise DirectoryNotGivenError(
        f"No checkpoint directory: directory={directory!r}, and neither {' nor '.join(DEFAULTS)} is set.",
        hint='pass one, e.g. PreemptionCheckpoint("runs/7"), or set TF_PREEMPT_DIR',
    )


def directory_news(
    directory: str | os.PathLike[str] | None, environ: Mapping[str, str] = os.environ
) -> str | None:
    """A line for the user where the environment chose the directory; None where the program did.

    Args:
        directory: as given in the program.
        environ: where `resolve_directory` has looked.

    Environment:
        TF_PREEMPT_DIR_OVERRIDE, TF_PREEMPT_DIR, AIP_CHECKPOINT_DIR: see `resolve_directory`.
    """
    override = environ.get(OVERRIDE)
    if override and directory is not None:
        return f"{OVERRIDE}={override} is used in place of the program's directory {directory}."
    if directory is not None and str(directory):
        return None
    name = next((name for name in (OVERRIDE, *DEFAULTS) if environ.get(name)), None)
    return f"Checkpoints go to {environ[name]} (from {name})." if name else None


def _absolute(path: str) -> str:
    return path.rstrip("/") if _files.is_url(path) else os.path.abspath(os.path.expanduser(path))


class DirectoryClaim:
    """This process's exclusive use of a checkpoint directory; give it back with `release`.

    Args:
        directory: absolute path or URL.

    Raises:
        DirectoryInUseError: another callback or handler of this process uses it now.
    """

    _lock = threading.Lock()
    _taken: set[str] = set()  # noqa: RUF012 - shared by all instances on purpose

    def __init__(self, directory: str) -> None:
        self._key = directory if _files.is_url(directory) else os.path.realpath(directory)
        with self._lock:
            if self._key in self._taken:
                raise DirectoryInUseError(
                    f"Two callbacks or handlers use the checkpoint directory {directory} at the same time.",
                    hint="pass one PreemptionCheckpoint to fit, or give each its own directory",
                )
            self._taken.add(self._key)

    def release(self) -> None:
        """Lets others use the directory; calling it twice is fine."""
        with self._lock:
            self._taken.discard(self._key)


class WriteProof:
    """A file with a name that nobody could guess, written by the chief and looked for by the others.

    Args:
        directory: the checkpoint directory; created if missing.

    Raises:
        DirectoryNotWritableError: it cannot be created or written to.
    """

    def __init__(self, directory: str) -> None:
        self.name = f".tf_preempt-{uuid.uuid4().hex}"
        self._directory = directory
        self._created = _missing(directory)
        try:
            _files.make_dirs(directory)
            _files.write_atomic(_files.join(directory, self.name), b"")
        except Exception as error:
            if not (isinstance(error, OSError) or _files.is_url(directory)):
                raise
            raise DirectoryNotWritableError(
                f"The checkpoint directory {directory} cannot be written to: {error}",
                hint="choose a directory that this user can create and write files in",
            ) from error

    def remove(self, *, also_directory: bool = False) -> None:
        """Deletes the file again, and the directories too that were made for it and are empty."""
        _files.remove(_files.join(self._directory, self.name))
        for path in self._created if also_directory else ():
            try:
                os.rmdir(path)
            except OSError:
                break  # something else is in it by now


def _missing(directory: str) -> list[str]:
    """The directory and its parents, innermost first, that do not exist; object stores have none."""
    missing: list[str] = []
    while directory and not (_files.is_url(directory) or os.path.exists(directory)):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return missing


def check_shared(directory: str, proof_name: str, *, worker: int, patience_s: float = 5.0) -> None:
    """Checks that this worker sees the file that the chief has written.

    Args:
        directory: as this worker names it.
        proof_name: name of the chief's file.
        worker: index of this worker, for the message.
        patience_s: seconds for which network file systems may go on showing an old listing.

    Raises:
        DirectoryNotSharedError: the file does not appear.
    """
    path = _files.join(directory, proof_name)
    pause = threading.Event()
    waited_s = 0.0
    while not _files.exists(path):
        if waited_s >= patience_s:
            raise DirectoryNotSharedError(
                f"Worker {worker} does not see what the chief wrote to the checkpoint directory {directory}.",
                hint="all workers need the same directory: a network file system, or a bucket (gs://...)",
            )
        pause.wait(0.25)
        waited_s += 0.25
