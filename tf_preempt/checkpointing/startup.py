"""How the workers begin together: one directory, one checkpoint, one numbering.

The chief looks at the directory and tells the others what it found; they check that they see the same files
and say so; then the chief gives the word.  Whatever is wrong becomes an error on all workers, before training
starts and with nothing left behind.
"""

from __future__ import annotations

import dataclasses
import json
import logging

from tf_preempt import _files, errors
from tf_preempt.checkpointing import manifest as manifests
from tf_preempt.checkpointing.committer import Committer
from tf_preempt.checkpointing.directory import WriteProof, check_shared
from tf_preempt.checkpointing.key_value import KeyValueStore
from tf_preempt.checkpointing.manifest import Manifest
from tf_preempt.errors import CheckpointMismatchError, CoordinationError, TfPreemptError

_log = logging.getLogger("tf_preempt")

BOUND = "bound_to_workers"
"""Key in a resume point: data, by name, with which no other number of workers can go on, and why."""

WRITTEN_EARLIER = {"": "the checkpoint is of an earlier version of tf_preempt, which kept no number of steps"}
"""What is under `BOUND` where the resume point has nothing there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """Who takes part.

    Args:
        worker: index of this worker; the chief is 0.
        workers: how many there are.
    """

    worker: int = 0
    workers: int = 1

    @property
    def is_chief(self) -> bool:
        """Says whether this worker writes and commits."""
        return self.worker == 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What all workers begin with.

    Args:
        incarnation: number of this life of the program.
        first_number: number of the first checkpoint that will be written.
        restore: the checkpoint to go on from, or None to begin afresh.
        adopt: name of a plain TensorFlow checkpoint to begin with, in a directory without any manifest.
    """

    incarnation: int
    first_number: int
    restore: Manifest | None
    adopt: str | None = None


def begin_together(
    committer: Committer,
    store: KeyValueStore,
    cluster: Cluster,
    *,
    prefix: str,
    fit: int,
    timeout_s: float = 300.0,
) -> Plan:
    """Agrees with all workers on the plan.

    Args:
        committer: of the checkpoint directory.
        store: shared by all workers.
        cluster: who takes part.
        prefix: for the keys.
        fit: ordinal of the training whose checkpoints count.
        timeout_s: how long to wait for workers that start late, in seconds.

    Raises:
        TfPreemptError: whatever the chief or a worker found wrong (see `errors`), on all workers alike.
        CoordinationError: a worker did not come within the time-out.
    """
    if cluster.is_chief:
        return _lead(committer, store, cluster, prefix=prefix, fit=fit, timeout_s=timeout_s)
    return _follow(committer, store, cluster, prefix=prefix, timeout_s=timeout_s)


def first_problem(
    store: KeyValueStore,
    cluster: Cluster,
    *,
    prefix: str,
    problem: Exception | None,
    timeout_s: float = 600.0,
) -> TfPreemptError | None:
    """Tells all workers what any of them found wrong.

    Args:
        store: shared by all workers.
        cluster: who takes part.
        prefix: for the keys.
        problem: what this worker found wrong; None if nothing.
        timeout_s: how long to wait for the others, in seconds; they may read large files.

    Returns:
        The first problem in the order of the workers, the same on all; None if nobody has one.

    Raises:
        CoordinationError: a worker did not answer within the time-out.
    """
    text = _error_text(problem) if problem else ""
    if not cluster.is_chief:
        store.set(f"{prefix}/problem/{cluster.worker}", text)
        verdict = _wait(store, f"{prefix}/problems", timeout_s, "the chief to hear of all workers' problems")
        return _error_from(verdict) if verdict else None
    problems = [text]
    for worker in range(1, cluster.workers):
        problems.append(_wait(store, f"{prefix}/problem/{worker}", timeout_s, f"worker {worker} to restore"))
    verdict = next(filter(None, problems), "")
    store.set(f"{prefix}/problems", verdict)
    return _error_from(verdict) if verdict else None


def _lead(
    committer: Committer,
    store: KeyValueStore,
    cluster: Cluster,
    *,
    prefix: str,
    fit: int,
    timeout_s: float,
) -> Plan:
    proof: WriteProof | None = None
    try:
        proof = WriteProof(committer.directory)
        plan = _look(committer, cluster, fit)
    except Exception as error:
        if proof is not None:
            proof.remove(also_directory=True)
        store.set(f"{prefix}/plan", _error_text(error))
        raise
    words = {
        "proof": proof.name,
        "incarnation": plan.incarnation,
        "number": plan.first_number,
        "restore": plan.restore.name if plan.restore else None,
        "adopt": plan.adopt,
    }
    verdict = ""
    try:
        store.set(f"{prefix}/plan", json.dumps(words))
        verdict = _first_objection(store, cluster, prefix=prefix, timeout_s=timeout_s)
        if verdict:
            raise _error_from(verdict)
    except Exception as error:
        proof.remove(also_directory=True)
        store.set(f"{prefix}/go", verdict or _error_text(error))
        raise
    proof.remove()
    store.set(f"{prefix}/go", "")
    return plan


def _first_objection(store: KeyValueStore, cluster: Cluster, *, prefix: str, timeout_s: float) -> str:
    """What the other workers found wrong; empty when all are content.

    Raises:
        CoordinationError: one of them did not come within the time-out.
    """
    answers = [
        _wait(store, f"{prefix}/ready/{worker}", timeout_s, f"worker {worker} to look at the directory")
        for worker in range(1, cluster.workers)
    ]
    return next((answer for answer in answers if answer), "")


def _look(committer: Committer, cluster: Cluster, fit: int) -> Plan:
    """The chief's look at the directory.

    Raises:
        CheckpointMismatchError: the checkpoint is of another model, or of another number of workers with
            data that only so many can go on with.
        CheckpointFormatError: it is of a newer format.
    """
    restore = committer.newest(fit=fit)
    if restore is not None:
        committer.check_variables(restore)
        if restore.workers != cluster.workers:
            _check_any_workers(restore, cluster, _files.join(committer.directory, restore.name))
    return Plan(
        incarnation=manifests.next_incarnation(committer.directory),
        first_number=manifests.next_number(committer.directory),
        restore=restore,
        adopt=committer.adoptable() if restore is None else None,
    )


def _check_any_workers(manifest: Manifest, cluster: Cluster, path: str) -> None:
    """Refuses another number of workers where they could not find their places in the data.

    Raises:
        CheckpointMismatchError: a data iterator's position fits the number of workers that wrote it only.
    """
    bound = manifest.resume.get(BOUND, WRITTEN_EARLIER)
    if not bound:
        return
    name, reason = next(iter(bound.items()))
    raise CheckpointMismatchError(
        f"{path} was written by {manifest.workers} worker(s); this job has {cluster.workers}, which cannot "
        f"go on with the data{f' {name!r}' if name else ''}: {reason}.",
        hint=f"start {manifest.workers} worker(s), or use another directory; data sets of "
        "tf_preempt.data, given to a strategy of this package, let the number of workers change (in a custom "
        "loop if handler.track is given the iterator before anything is taken from it)",
    )


def _follow(
    committer: Committer, store: KeyValueStore, cluster: Cluster, *, prefix: str, timeout_s: float
) -> Plan:
    words = json.loads(_wait(store, f"{prefix}/plan", timeout_s, "the chief to look at the directory"))
    if "error" in words:
        raise _error_from(json.dumps(words))
    problem: Exception | None = None
    restore: Manifest | None = None
    try:
        check_shared(committer.directory, words["proof"], worker=cluster.worker)
        if words["restore"]:
            restore = manifests.read_manifest(committer.directory, words["restore"])
            committer.check_variables(restore)
    except Exception as error:  # noqa: BLE001 - the others wait for this worker's answer
        problem = error
    store.set(f"{prefix}/ready/{cluster.worker}", _error_text(problem) if problem else "")
    verdict = _wait(store, f"{prefix}/go", timeout_s, "the chief's word to begin")
    if problem:
        raise problem
    if verdict:
        raise _error_from(verdict)
    return Plan(
        incarnation=words["incarnation"],
        first_number=words["number"],
        restore=restore,
        adopt=words["adopt"],
    )


def _wait(store: KeyValueStore, key: str, timeout_s: float, what: str) -> str:
    try:
        return store.get(key, timeout_s)
    except TimeoutError as error:
        raise CoordinationError(
            f"Waited {timeout_s:g} s for {what}.",
            hint="start all workers within that time, and give the callback to fit on every one of them",
        ) from error


def _error_text(error: Exception) -> str:
    """An error as the value of a key."""
    if isinstance(error, TfPreemptError):
        message, hint = str(error.args[0]).removesuffix(f"\nHINT: {error.hint}"), error.hint
    else:
        message, hint = f"{type(error).__name__}: {error}", None
    return json.dumps({"error": type(error).__name__, "message": message, "hint": hint})


def _error_from(text: str) -> TfPreemptError:
    """The error on another worker; one that is not of this package becomes a `TfPreemptError`."""
    words = json.loads(text)
    kind = getattr(errors, words["error"]) if words["error"] in errors.__all__ else TfPreemptError
    made: TfPreemptError = kind(words["message"], hint=words["hint"])
    return made
