"""`Agreement` with real threads on a store in memory; the protocol itself is tested in `test_rounds`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tf_preempt.checkpointing import agreement as agreement_module
from tf_preempt.checkpointing.agreement import Agreement, Decision, Request
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.errors import CoordinationError

LEAVE = Request(kind="leave", worker=0, reason="SIGTERM")
SAVE = Request(kind="save", worker=0, reason="every 600 s")
TIMEOUT_S = 10.0


@contextlib.contextmanager
def agreements(
    workers: int, *, store: LocalStore | None = None, silent: int | None = None, **options: object
) -> Iterator[list[Agreement]]:
    """Started agreements of all workers on one store; worker `silent` does not answer."""
    shared = store or LocalStore()
    made = [
        Agreement(shared, worker=index, workers=workers, prefix="p", poll_s=0.05, **options)  # type: ignore[arg-type]
        for index in range(workers)
    ]
    for index, agreement in enumerate(made):
        if index != silent:
            agreement.start()
    try:
        yield made
    finally:
        for agreement in made:
            agreement.close()


def train(agreement: Agreement, barrier: threading.Barrier, steps: int) -> tuple[int, Decision | None]:
    """Synchronous steps until a notice is acted on or training is over; returns where that was."""
    saves = 0
    for _ in range(steps):
        decision = agreement.boundary()
        if decision is not None:
            if decision.request.kind == "leave":
                return agreement.at, decision
            saves += 1
        barrier.wait(TIMEOUT_S)
    return agreement.at, agreement.finish()


def train_all(
    made: list[Agreement], steps: int, at_step: Callable[[], None] = lambda: None
) -> list[tuple[int, Decision | None]]:
    barrier = threading.Barrier(len(made), action=at_step)
    with ThreadPoolExecutor(len(made)) as pool:
        futures = [pool.submit(train, agreement, barrier, steps) for agreement in made]
        return [future.result(TIMEOUT_S) for future in futures]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_all_workers_leave_at_one_boundary_soon_after_a_notice(workers: int) -> None:
    with agreements(workers) as made:
        asked_at: list[int] = []

        def at_step() -> None:
            if made[0].at == 50:
                made[-1].request(LEAVE)
                asked_at.append(made[0].at)

        ends = train_all(made, 1_000_000, at_step)
    assert asked_at == [50]
    assert {decision for _, decision in ends} == {Decision(boundary=ends[0][0], request=LEAVE)}
    assert {at for at, _ in ends} == {ends[0][0]}


def test_a_notice_at_every_worker_at_once_opens_one_round() -> None:
    with agreements(4) as made:

        def at_step() -> None:
            if made[0].at == 10:
                for index, agreement in enumerate(made):
                    agreement.request(Request(kind="leave", worker=index, reason="SIGTERM"))

        ends = train_all(made, 1_000_000, at_step)
    assert len(set(ends)) == 1


def test_saves_follow_each_other_and_leaving_ends_it() -> None:
    acted: list[Decision] = []
    with agreements(1) as (agreement,):
        for request in (SAVE, SAVE, LEAVE):
            agreement.request(request)
            while (decision := agreement.boundary()) is None:
                pass
            acted.append(decision)
    assert [decision.request for decision in acted] == [SAVE, SAVE, LEAVE]
    assert [decision.boundary for decision in acted] == sorted(decision.boundary for decision in acted)


def test_training_goes_on_unheld_after_a_save() -> None:
    with agreements(1) as (agreement,), ThreadPoolExecutor(1) as pool:
        agreement.request(SAVE)
        while agreement.boundary() is None:
            pass
        try:
            assert [pool.submit(agreement.boundary).result(TIMEOUT_S) for _ in range(3)] == [None] * 3
        finally:
            agreement.close()  # releases a boundary that waits in vain


def test_finish_takes_the_decision_of_a_round_whose_boundary_is_behind_the_end() -> None:
    held = threading.Event()
    with agreements(1, on_claim=lambda _: held.set()) as (agreement,):
        assert agreement.boundary() is None
        agreement.request(LEAVE)
        assert held.wait(TIMEOUT_S)
        assert agreement.finish() == Decision(boundary=2, request=LEAVE)


def test_finish_without_a_round_returns_at_once() -> None:
    with agreements(3) as made:
        assert train_all(made, 3) == [(3, None)] * 3
        assert [agreement.at for agreement in made] == [4, 4, 4]


def test_a_request_after_the_end_disturbs_nobody() -> None:
    held = threading.Event()
    with agreements(1, on_claim=lambda _: held.set()) as (agreement,):
        assert agreement.finish() is None
        agreement.request(LEAVE)
        assert held.wait(TIMEOUT_S)


def test_a_worker_that_does_not_answer_is_named_and_the_main_thread_released() -> None:
    with agreements(2, silent=1, report_timeout_s=0.2) as made:
        made[0].request(SAVE)
        with pytest.raises(CoordinationError, match=r"Worker 1 did not say where it is within 0\.2 s"):
            boundaries_until_error(made[0])


def boundaries_until_error(agreement: Agreement) -> None:
    while True:
        assert agreement.boundary() is None


def test_close_releases_a_main_thread_that_waits() -> None:
    held = threading.Event()
    with agreements(2, silent=1, on_claim=lambda _: held.set()) as made:
        made[0].request(SAVE)
        assert held.wait(TIMEOUT_S)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(made[0].boundary)
            made[0].close()
            assert waiting.result(TIMEOUT_S) is None


def test_close_ends_a_thread_that_waits_for_its_main_thread() -> None:
    held = threading.Event()
    with agreements(1, on_claim=lambda _: held.set()) as (agreement,):
        agreement.request(SAVE)
        assert held.wait(TIMEOUT_S)
        agreement.close()
        agreement.close()
        assert not agreement._thread.is_alive()


def test_close_does_not_wait_until_the_thread_would_look_up() -> None:
    waits = threading.Event()

    class WatchedStore(LocalStore):
        def get(self, key: str, timeout_s: float) -> str:
            waits.set()
            return super().get(key, timeout_s)

    agreement = Agreement(WatchedStore(), worker=0, workers=1, prefix="p", poll_s=600.0)
    agreement.start()
    assert waits.wait(TIMEOUT_S)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(agreement.close).result(TIMEOUT_S)
    assert not agreement._thread.is_alive()


def test_close_before_start_is_fine() -> None:
    agreement = Agreement(LocalStore(), worker=0, workers=1, prefix="p")
    agreement.close()
    assert agreement.boundary() is None


class BrokenStore(LocalStore):
    """A store whose process goes away."""

    def get(self, key: str, timeout_s: float) -> str:
        raise CoordinationError("the service is gone")


def test_a_store_that_is_gone_surfaces_at_the_next_boundary() -> None:
    with (
        agreements(1, store=BrokenStore()) as (agreement,),
        pytest.raises(CoordinationError, match="is gone"),
    ):
        boundaries_until_error(agreement)


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_an_error_in_a_callback_surfaces_at_the_next_boundary(kind: type[BaseException]) -> None:
    def on_poll() -> None:
        raise kind("in on_poll")

    with agreements(1, on_poll=on_poll) as (agreement,), pytest.raises(CoordinationError, match="in on_poll"):
        boundaries_until_error(agreement)


@pytest.mark.parametrize("finished", [False, True])
def test_an_agreement_thread_that_hangs_holds_the_main_thread_no_longer_than_the_time_out(
    monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    held, may_go_on = threading.Event(), threading.Event()

    def hang(_: Request) -> None:
        held.set()
        may_go_on.wait(TIMEOUT_S)

    monkeypatch.setattr(agreement_module, "_OWN_THREAD_MARGIN_S", 0.1)
    with agreements(1, on_claim=hang, report_timeout_s=0.1) as (agreement,):
        agreement.request(SAVE)
        assert held.wait(TIMEOUT_S)
        with pytest.raises(
            CoordinationError, match=r"Boundary 1 was held for 0\.2 s.*agreement thread hangs"
        ):
            agreement.finish() if finished else agreement.boundary()
        may_go_on.set()


def test_on_poll_may_ask_for_a_round_and_on_claim_hears_of_every_claim() -> None:
    claims: list[Request] = []
    made: list[Agreement] = []
    with agreements(1, on_poll=lambda: made[0].request(SAVE), on_claim=claims.append) as started:
        made += started
        while (decision := made[0].boundary()) is None:
            pass
    assert decision.request == SAVE
    assert claims == [SAVE]


def test_a_boundary_without_a_round_touches_neither_the_store_nor_a_lock() -> None:
    agreement = Agreement(LocalStore(), worker=0, workers=1, prefix="p")
    with (
        agreement._changed,
        ThreadPoolExecutor(1) as pool,
    ):  # held by this thread: a lock would block the other
        assert pool.submit(agreement.boundary).result(TIMEOUT_S) is None
    assert agreement.at == 1
