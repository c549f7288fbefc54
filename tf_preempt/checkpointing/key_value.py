"""The key-value store through which workers agree: one interface, two implementations.

Workers of one job share TensorFlow's coordination service, which lives in the chief's process.  A single
worker needs nobody's service and uses a store in memory; so do tests, with a thread per worker.

Why there is no barrier here: TensorFlow's ``wait_at_barrier`` holds the GIL while it waits, so that
training, the signal thread and the commit all stand still (measured on TensorFlow 2.18 and 2.21).
``get`` with a time-out releases it.
"""

from __future__ import annotations

import collections
import threading
from typing import Any, Protocol

from tf_preempt.errors import CoordinationError, WorkerLostError

DEFAULT_SET_TIMEOUT_S = 10.0


class KeyExistsError(CoordinationError):
    """Somebody else has already written this key; keys are written once."""


class KeyValueStore(Protocol):
    """What the agreement needs of a store: write once, and wait for a key."""

    def set(self, key: str, value: str) -> None:
        """Writes a key that does not exist yet.

        Raises:
            KeyExistsError: the key exists.
            CoordinationError: the store did not answer in time, or its process is gone.
        """

    def get(self, key: str, timeout_s: float) -> str:
        """Waits for a key and returns its value.

        Raises:
            TimeoutError: nobody wrote it within `timeout_s` seconds.
            WorkerLostError: the store's process is gone.
        """

    def wake(self, key: str) -> None:
        """Ends this process's waits for a key early, where that is possible; they raise TimeoutError."""


class LocalStore:
    """A store in this process's memory: for a single worker, and for tests with a thread per worker.

    Example:
        >>> store = LocalStore()
        >>> store.set("round/0", "claimed")
        >>> store.get("round/0", timeout_s=1.0)
        'claimed'
    """

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._wakes: collections.Counter[str] = collections.Counter()
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        """Writes a key that does not exist yet.

        Raises:
            KeyExistsError: the key exists.
        """
        with self._changed:
            if key in self._values:
                raise KeyExistsError(f"Key {key!r} exists already.")
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float) -> str:
        """Waits for a key and returns its value.

        Raises:
            TimeoutError: nobody wrote it within `timeout_s` seconds, or `wake` was called.
        """
        with self._changed:
            wakes = self._wakes[key]
            self._changed.wait_for(lambda: key in self._values or self._wakes[key] != wakes, timeout_s)
            if key not in self._values:
                raise TimeoutError(f"Nobody wrote {key!r} within {timeout_s:g} s.")
            return self._values[key]

    def wake(self, key: str) -> None:
        """Ends all waits for a key early; they raise TimeoutError."""
        with self._changed:
            self._wakes[key] += 1
            self._changed.notify_all()


class CoordinationServiceStore:
    """TensorFlow's coordination service, as started by ``MultiWorkerMirroredStrategy``.

    Args:
        set_timeout_s: seconds after which a write is given up.  The service's own ``set`` has no time-out
            (over 40 s with a stopped chief were measured), so it runs in a thread that nobody waits for.
    """

    def __init__(self, *, set_timeout_s: float = DEFAULT_SET_TIMEOUT_S) -> None:
        self._set_timeout_s = set_timeout_s

    def set(self, key: str, value: str) -> None:
        """Writes a key that does not exist yet.

        Raises:
            KeyExistsError: the key exists.
            CoordinationError: no answer within the time-out, or the chief's process is gone.
        """
        outcome: list[BaseException | None] = []
        writer = threading.Thread(
            target=self._set_now, args=(key, value, outcome), name="tf_preempt-set", daemon=True
        )
        writer.start()
        writer.join(self._set_timeout_s)
        if not outcome:
            raise CoordinationError(
                f"Writing key {key!r} to the coordination service took longer than {self._set_timeout_s:g} s."
            )
        if outcome[0] is not None:
            raise outcome[0]

    @staticmethod
    def _set_now(key: str, value: str, outcome: list[BaseException | None]) -> None:
        import tensorflow as tf

        from tf_preempt.strategies import _tf_internals

        try:
            _tf_internals.coordination_set(key, value)
        except tf.errors.AlreadyExistsError:
            outcome.append(KeyExistsError(f"Key {key!r} exists already."))
        except tf.errors.OpError as error:
            outcome.append(_service_gone(key, error))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            outcome.append(error)
        else:
            outcome.append(None)

    def get(self, key: str, timeout_s: float) -> str:
        """Waits for a key and returns its value.

        Raises:
            TimeoutError: nobody wrote it within `timeout_s` seconds.
            WorkerLostError: the chief's process is gone.
        """
        import tensorflow as tf

        from tf_preempt.strategies import _tf_internals

        try:
            return _tf_internals.coordination_get(key, timeout_s)
        except tf.errors.OpError as error:
            raise _service_gone(key, error) from error

    def wake(self, key: str) -> None:
        """Does nothing: the service's own wait cannot be ended."""


def _service_gone(key: str, error: Any) -> WorkerLostError:
    return WorkerLostError(
        f"The coordination service in the chief's process did not answer for key {key!r}: {error.message}"
    )
