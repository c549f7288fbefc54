"""Saving, committing, choosing and deleting checkpoints of one directory.

Variables are written by ``tf.train.CheckpointManager`` and by nothing else.  Around it: each worker's part,
the manifest as the commit, and retention.  TensorFlow's manager deletes an old checkpoint as soon as the new
data is complete, which is before our commit; ours therefore keeps everything (``max_to_keep=None``), and what
is too old goes after the commit.

Files are named by a number that only grows and that nothing in the directory has used before, so no write
ever touches an older checkpoint.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import logging
from typing import Any

import tensorflow as tf

from tf_preempt import _files
from tf_preempt._version import __version__
from tf_preempt.checkpointing import manifest as manifests
from tf_preempt.checkpointing.manifest import FileRecord, Manifest
from tf_preempt.errors import CheckpointMismatchError, CheckpointWriteError

_log = logging.getLogger("tf_preempt")
_SAVE_COUNTER = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
# Under this name TensorFlow's PreemptionCheckpointHandler (2.21) saves how often its `run` was called.
_RUN_CALLS = "checkpointed_runs/.ATTRIBUTES/VARIABLE_VALUE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveRecord:
    """What the chief knows of a save that is not committed yet."""

    prefix: str
    number: int
    step: int
    resume: dict[str, Any]
    reason: str
    started: float
    files: list[FileRecord]


class Committer:
    """The chief's view of a checkpoint directory; other workers use its reading half.

    Args:
        manager: writes the variables.  Its directory is the checkpoint directory.
        max_to_keep: how many committed checkpoints stay; None: all.
        name: the manager's `checkpoint_name`.
        variables: path, shape and dtype of each saved variable (see `describe_variables`); empty: only
            TensorFlow compares.
    """

    def __init__(
        self, manager: Any, *, max_to_keep: int | None, variables: list[list[Any]], name: str = "ckpt"
    ) -> None:
        self._manager = manager
        self._name = name
        self._max_to_keep = max_to_keep
        self._variables = variables

    @property
    def directory(self) -> str:
        """The checkpoint directory."""
        return str(self._manager.directory)

    def prefix(self, number: int) -> str:
        """Name that the manager gives to a checkpoint."""
        return f"{self._name}-{number}"

    def newest_path(self) -> str | None:
        """Path of the newest checkpoint that the manager knows, committed or not."""
        path = self._manager.latest_checkpoint
        return None if path is None else str(path)

    def free_number(self, number: int) -> int:
        """The first number from `number` on that no checkpoint has: the program may save some of its own.

        Its manager deletes what it has written, and would take one of ours of the same name for that.
        """
        while _files.exists(_files.join(self.directory, f"{self.prefix(number)}.index")):
            number += 1
        return number

    def save_variables(self, number: int) -> list[FileRecord]:
        """Writes the variables as checkpoint `number`; returns the files.

        Raises:
            CheckpointWriteError: TensorFlow could not write them.
        """
        self.count_from(number)
        try:
            self._manager.save(checkpoint_number=number, check_interval=False)
        except (tf.errors.OpError, OSError) as error:
            raise CheckpointWriteError(
                f"Saving checkpoint {number} to {self.directory} failed: {error}"
            ) from error
        return self.files_of(self.prefix(number))

    def count_from(self, number: int) -> None:
        """Lets TensorFlow's own count give its next checkpoint this number.

        A user's `save_fn`, or a program that goes back to TensorFlow's handler, then overwrites none of ours.
        """
        self._manager.checkpoint.save_counter.assign(number - 1)

    def files_of(self, prefix: str) -> list[FileRecord]:
        """The files that TensorFlow wrote for a checkpoint."""
        names = [
            name
            for name in _files.list_dir(self.directory)
            if name == f"{prefix}.index" or name.startswith(f"{prefix}.data-")
        ]
        return [FileRecord.of(self.directory, name) for name in names]

    def commit(
        self, save: SaveRecord, *, incarnation: int, workers: int, now: float, seconds: float
    ) -> Manifest:
        """Makes a save exist for readers, then deletes what is too old.

        Raises:
            CheckpointWriteError: the manifest could not be written.  What happens later raises nothing.
        """
        manifest = Manifest(
            prefix=save.prefix,
            number=save.number,
            step=save.step,
            incarnation=incarnation,
            resume=save.resume,
            workers=workers,
            reason=save.reason,
            written=datetime.datetime.fromtimestamp(now, datetime.timezone.utc).isoformat(
                timespec="milliseconds"
            ),
            seconds=round(seconds, 4),
            versions=_versions(),
            variables=self._variables,
            files=save.files,
        )
        path = _files.join(self.directory, manifest.name)
        try:
            _files.write_atomic(path, manifest.to_bytes())
        except (OSError, tf.errors.OpError) as error:
            raise CheckpointWriteError(f"Committing {path} failed: {error}") from error
        try:
            self._delete_old(manifest)
        except Exception as error:  # noqa: BLE001 - the checkpoint exists: nothing may say that it does not
            _log.warning("Old checkpoints in %s could not be deleted: %s", self.directory, error)
        return manifest

    def newest(self, *, fit: int) -> Manifest | None:
        """The newest checkpoint of the `fit`-th training that can be used; sets damaged ones aside.

        Raises:
            NewerFormatError: a manifest was written by a newer version; nothing is touched then.
            OSError: a file could not be read, or not set aside (for URLs TensorFlow's own error).
        """
        readable, damaged = manifests.readable_manifests(self.directory)
        for broken in damaged:
            self.set_aside(broken.name.removesuffix(".manifest.json"), broken.problem)
        for manifest in readable:
            if manifest.resume.get("fit", 0) != fit:
                continue
            problem = manifests.problem_with(self.directory, manifest)
            if problem is None:
                return manifest
            self.set_aside(manifest.prefix, problem)
        return None

    def adoptable(self) -> str | None:
        """Name of the newest checkpoint of another program in a directory that has never had a manifest.

        Ours that were never committed are passed over: each worker's part is written before the variables.
        """
        if manifests.manifest_names(self.directory) or _files.exists(
            _files.join(self.directory, manifests.SET_ASIDE)
        ):
            return None
        state = tf.train.get_checkpoint_state(self.directory)
        oldest_first = list(state.all_model_checkpoint_paths) if state else []
        if state and state.model_checkpoint_path not in oldest_first:
            oldest_first.append(state.model_checkpoint_path)
        names = (path.replace("\\", "/").rpartition("/")[2] for path in reversed(oldest_first))
        return next((name for name in names if self._is_of_another_program(name)), None)

    def _is_of_another_program(self, name: str) -> bool:
        path = _files.join(self.directory, name)
        return _files.exists(f"{path}.index") and not _files.exists(f"{path}.workers")

    def set_aside(self, prefix: str, problem: str) -> None:
        """Moves a checkpoint that turned out to be damaged out of the way, and says so."""
        _log.warning(
            "Checkpoint %s in %s is damaged (%s); it is set aside and the one before it is used.",
            prefix,
            self.directory,
            problem,
        )
        manifests.set_aside(self.directory, prefix=prefix)

    def check_variables(self, manifest: Manifest) -> None:
        """Compares the checkpoint's variables with this program's, by position, shape and dtype.

        Raises:
            CheckpointMismatchError: they differ; the message lists up to ten differences.
        """
        differences = variable_differences(manifest.variables, self._variables)
        if differences and self._variables:
            raise CheckpointMismatchError(
                f"{_files.join(self.directory, manifest.name)} holds another model's variables:\n  "
                + "\n  ".join(differences),
                hint="build the model as it was when the checkpoint was written, or use another directory",
            )

    def look_at_variables(self, prefix: str) -> None:
        """Opens the variables of the checkpoint named `prefix`, as far as that changes nothing.

        Raises:
            tf.errors.OpError: they are not there, or TensorFlow found the files damaged.
        """
        tf.train.load_checkpoint(_files.join(self.directory, prefix))

    def run_calls(self, prefix: str) -> int:
        """The `total_run_calls` that TensorFlow's handler saved in a checkpoint; 0 if it did not write it.

        Raises:
            tf.errors.OpError: the files are not there, or TensorFlow found them damaged.
        """
        reader = tf.train.load_checkpoint(_files.join(self.directory, prefix))
        return int(reader.get_tensor(_RUN_CALLS)) if reader.has_tensor(_RUN_CALLS) else 0

    def restore_variables(self, checkpoint: Any, prefix: str) -> None:
        """Reads the variables of the checkpoint named `prefix` into `checkpoint`'s objects.

        Raises:
            CheckpointMismatchError: an object has no value there, or one of another shape.
            tf.errors.OpError: TensorFlow found the files damaged.
        """
        path = _files.join(self.directory, prefix)
        try:
            # Expected first, so that TensorFlow does not list the rest when a failed restore is collected.
            self._read(checkpoint, path).expect_partial().assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            # Keras shows the whole value of a variable.
            what = str(error).partition("value=")[0].rstrip(" ,(")
            raise CheckpointMismatchError(
                f"{path} does not hold what the program's checkpoint holds: {what}",
                hint="build the objects as they were when the checkpoint was written, "
                "or use another directory",
            ) from error

    @staticmethod
    def _read(checkpoint: Any, path: str) -> Any:
        if not tf.train.load_checkpoint(path).has_tensor(_SAVE_COUNTER):  # what a user's save_fn may write
            return checkpoint.read(path)
        # Made before it is read: otherwise it would be read later, also from a file that was set aside.
        checkpoint.save_counter  # noqa: B018 - a property that makes the variable
        return checkpoint.restore(path)

    def _delete_old(self, committed: Manifest) -> None:
        """Deletes what is too old."""
        if self._max_to_keep is None:
            return
        readable, _ = manifests.readable_manifests(self.directory)
        # Put in by hand: the listing of a network file system may not show yet what was just written.
        known = {manifest.number: manifest for manifest in [*readable, committed]}
        newest_first = [known[number] for number in sorted(known, reverse=True)]
        keep = to_keep(newest_first, self._max_to_keep)
        self._record([manifest.prefix for manifest in newest_first if manifest.number in keep])
        for old in newest_first:
            if old.number not in keep:
                _delete(self.directory, old)

    def _record(self, kept_newest_first: list[str]) -> None:
        """Tells TensorFlow's own state file which checkpoints are left.

        By names without the directory, as TensorFlow's manager writes them: the directory can be moved then.
        """
        names = kept_newest_first[::-1]
        state = tf.compat.v1.train.generate_checkpoint_state_proto(self.directory, model_checkpoint_path="")
        state.ClearField("all_model_checkpoint_paths")
        state.model_checkpoint_path = names[-1]
        state.all_model_checkpoint_paths.extend(names)
        _files.write_atomic(_files.join(self.directory, "checkpoint"), str(state).encode())


def to_keep(manifests_newest_first: list[Manifest], max_to_keep: int) -> set[int]:
    """Numbers of the checkpoints that stay: the newest ones, and each training's last one."""
    newest = {manifest.number for manifest in manifests_newest_first[:max_to_keep]}
    last_of_fit: dict[int, int] = {}
    for manifest in manifests_newest_first:
        last_of_fit.setdefault(manifest.resume.get("fit", 0), manifest.number)
    return newest | set(last_of_fit.values())


def _delete(directory: str, manifest: Manifest) -> None:
    """Deletes a checkpoint: its manifest first, so that a half deleted one does not exist."""
    _files.remove(_files.join(directory, manifest.name))
    for record in manifest.files:
        _files.remove(_files.join(directory, *record.name.split("/")))
    # Not always named as the prefix, see Saver.
    for folder in {record.name.rpartition("/")[0] for record in manifest.files} - {""}:
        _files.remove_tree(_files.join(directory, *folder.split("/")))


def describe_variables(variables: list[Any]) -> list[list[Any]]:
    """Path, shape and dtype of each variable, as the manifest keeps them."""
    described = []
    for variable in variables:
        path = getattr(variable, "path", None) or getattr(variable, "name", "")
        dtype = tf.as_dtype(variable.dtype).name
        described.append([str(path), [int(size) for size in variable.shape], dtype])
    return described


def variable_differences(saved: list[list[Any]], present: list[list[Any]], *, most: int = 10) -> list[str]:
    """What differs between two lists of variables; names may differ, shapes and dtypes may not."""
    differences = []
    for position in range(max(len(saved), len(present))):
        old = saved[position] if position < len(saved) else None
        new = present[position] if position < len(present) else None
        if old is None or new is None or old[1:] != new[1:]:
            differences.append(f"variable {position}: checkpoint {_show(old)}, program {_show(new)}")
    if len(differences) > most:
        differences[most:] = [f"and {len(differences) - most} more"]
    return differences


def _show(variable: list[Any] | None) -> str:
    return "has none" if variable is None else f"{variable[0]} {tuple(variable[1])} {variable[2]}"


def _versions() -> dict[str, str]:
    return {
        "tf_preempt": __version__,
        "tensorflow": tf.__version__,
        "keras": importlib.metadata.version("keras"),
    }


def encode_files(files: list[FileRecord]) -> str:
    """A worker's file records as the value of a key."""
    return json.dumps([dataclasses.asdict(record) for record in files])


def decode_files(text: str) -> list[FileRecord]:
    """Reads what `encode_files` wrote."""
    return [FileRecord(**record) for record in json.loads(text)]
