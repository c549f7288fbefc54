from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tf_preempt.checkpointing.key_value import KeyExistsError, LocalStore
from tf_preempt.errors import CoordinationError

TIMEOUT_S = 20.0


def test_a_key_is_read_as_it_was_written_by_everybody_and_again() -> None:
    store = LocalStore()
    store.set("a/b", "ä\n")
    assert [store.get("a/b", 0.0) for _ in range(2)] == ["ä\n"] * 2


def test_a_key_is_written_once_and_the_first_value_stays() -> None:
    store = LocalStore()
    store.set("key", "first")
    with pytest.raises(KeyExistsError, match="'key' exists") as raised:
        store.set("key", "second")
    assert isinstance(raised.value, CoordinationError)
    assert store.get("key", 0.0) == "first"


def test_of_many_writers_at_once_exactly_one_succeeds() -> None:
    store = LocalStore()
    barrier = threading.Barrier(8)

    def write(number: int) -> int | None:
        barrier.wait(TIMEOUT_S)
        try:
            store.set("key", str(number))
        except KeyExistsError:
            return None
        return number

    with ThreadPoolExecutor(8) as pool:
        winners = [number for number in pool.map(write, range(8)) if number is not None]
    assert [store.get("key", 0.0)] == [str(number) for number in winners]


def test_get_wakes_up_when_the_key_is_written() -> None:
    store = LocalStore()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "key", TIMEOUT_S)
        store.set("another", "x")
        store.set("key", "value")
        assert waiting.result(TIMEOUT_S / 2) == "value"


def test_wake_ends_the_waits_for_its_key_only() -> None:
    store = LocalStore()
    with ThreadPoolExecutor(2) as pool:
        woken, other = pool.submit(store.get, "key", TIMEOUT_S), pool.submit(store.get, "other", TIMEOUT_S)
        while not woken.done():
            store.wake("key")
        with pytest.raises(TimeoutError):
            woken.result()
        assert not other.done()
        store.set("other", "value")
        assert other.result(TIMEOUT_S / 2) == "value"


def test_get_gives_up_after_its_time_out() -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"'key' within 0\.05 s"):
        LocalStore().get("key", 0.05)
    assert 0.05 <= time.monotonic() - started < TIMEOUT_S
