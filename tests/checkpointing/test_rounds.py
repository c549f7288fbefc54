"""The script of a round, operation by operation; whole trainings: `test_random_schedules` and beside it."""

from __future__ import annotations

import pytest

from tf_preempt.checkpointing.key_value import KeyExistsError
from tf_preempt.checkpointing.rounds import (
    Announce,
    Await,
    Decide,
    Decision,
    Hold,
    LookAround,
    ReadBoundary,
    Request,
    Rounds,
    Write,
)
from tf_preempt.errors import CoordinationError

LEAVE = Request(kind="leave", worker=0, reason="SIGTERM", deadline_s=12.5)
NOTICE = Request(kind="notice", worker=0, reason="gce", deadline_s=60.0)
SAVE = Request(kind="save", worker=0, reason="every 600 s")


def rounds_of_one(*, worker: int = 0, workers: int = 1) -> Rounds:
    return Rounds(worker=worker, workers=workers, prefix="p", report_timeout_s=1.0, clock=lambda: 0.0)


def text(boundary: int, request: Request) -> str:
    """A report, or what was agreed."""
    return f"{boundary} {request.to_json()}"


def test_a_round_of_the_chief_is_these_operations_in_this_order() -> None:
    rounds = rounds_of_one(worker=0, workers=2)
    script = rounds.serve()
    assert next(script) == Await("p/round/0/claim")
    assert script.send(NOTICE.to_json()) == LookAround()
    assert script.send(None) == Hold()
    assert script.send(None) == ReadBoundary()
    assert script.send(7) == Write("p/round/0/at/0", text(7, NOTICE))
    assert script.send(None) == Announce(NOTICE)
    assert script.send(None) == Await("p/round/0/at/0", 1.0)
    assert script.send(text(7, NOTICE)) == Await("p/round/0/at/1", 1.0)
    assert script.send(text(8, NOTICE)) == Write("p/round/0/agreed", text(9, NOTICE))
    assert script.send(None) == Decide(Decision(boundary=9, request=NOTICE))
    rounds.acted()
    assert script.send(None) == Await("p/round/1/claim")


def test_a_round_of_another_worker_is_these_operations_in_this_order() -> None:
    rounds = rounds_of_one(worker=1, workers=2)
    script = rounds.serve()
    assert next(script) == Await("p/round/0/claim")
    assert script.send(SAVE.to_json()) == LookAround()
    assert script.send(None) == Hold()
    assert script.send(None) == ReadBoundary()
    assert script.send(7) == Write("p/round/0/at/1", text(7, SAVE))
    assert script.send(None) == Announce(SAVE)
    assert script.send(None) == Await("p/round/0/agreed", 11.0)
    assert script.send(text(9, NOTICE)) == Announce(NOTICE)  # somebody else wants more than a save
    assert script.send(None) == Decide(Decision(boundary=9, request=NOTICE))
    rounds.acted()
    assert script.send(None) == Await("p/round/1/claim")


EARLY, LATE = (Request(kind="notice", worker=2, reason="aws", deadline_s=left_s) for left_s in (30.0, 90.0))


@pytest.mark.parametrize(
    ("claimed", "wanted", "said"),
    [
        (SAVE, [], SAVE),
        (SAVE, [NOTICE], NOTICE),
        (SAVE, [NOTICE, LEAVE], LEAVE),
        (LEAVE, [NOTICE, SAVE], LEAVE),
        (NOTICE, [EARLY], EARLY),
        (NOTICE, [LATE], NOTICE),
        (NOTICE, [LATE, EARLY], EARLY),
        (NOTICE, [Request(kind="notice", worker=2, reason="a user's function")], NOTICE),
    ],
)
@pytest.mark.parametrize("worker", [0, 1])
def test_a_round_does_the_most_urgent_of_what_is_wanted(
    claimed: Request, wanted: list[Request], said: Request, worker: int
) -> None:
    rounds = rounds_of_one(worker=worker, workers=2)
    for request in wanted:
        rounds.want(request)
    script = rounds.serve()
    next(script)
    operations = [script.send(claimed.to_json()), *(script.send(answer) for answer in (None, None, 3))]
    assert operations[-1] == Write(f"p/round/0/at/{worker}", text(3, said))
    script.send(None)
    script.send(None)
    if worker == 0:
        script.send(text(3, claimed))
        assert script.send(text(3, said)) == Write("p/round/0/agreed", text(4, said))


@pytest.mark.parametrize("wanted", [[SAVE, LEAVE], [LEAVE, SAVE], [LEAVE, NOTICE]])
def test_the_most_urgent_wish_is_claimed(wanted: list[Request]) -> None:
    rounds = rounds_of_one()
    for request in wanted:
        rounds.want(request)
    assert next(rounds.claim()) == Write("p/round/0/claim", LEAVE.to_json())


def test_a_claim_that_somebody_else_made_stays_wanted() -> None:
    rounds = rounds_of_one()
    rounds.want(NOTICE)
    claim = rounds.claim()
    assert next(claim) == Write("p/round/0/claim", NOTICE.to_json())
    with pytest.raises(StopIteration):
        claim.throw(KeyExistsError("there"))
    assert next(rounds.claim()) == Write("p/round/0/claim", NOTICE.to_json())


@pytest.mark.parametrize(
    ("settled", "wanted", "claims_again"),
    [
        (SAVE, SAVE, False),
        (SAVE, NOTICE, True),
        (SAVE, LEAVE, True),
        (NOTICE, SAVE, False),
        (NOTICE, NOTICE, False),
        (NOTICE, LEAVE, True),
        (LEAVE, SAVE, False),
        (LEAVE, NOTICE, False),
        (LEAVE, LEAVE, False),
        (Request(kind="leave", worker=1, reason="gce"), LEAVE, False),
        (Request(kind="save", worker=1, reason="r"), SAVE, False),
    ],
)
def test_a_wish_that_comes_after_the_report_is_served_by_a_round_that_does_as_much(
    settled: Request, wanted: Request, claims_again: bool
) -> None:
    rounds = rounds_of_one(worker=1, workers=2)
    script = rounds.serve()
    next(script)
    operation = script.send(settled.to_json())
    while not isinstance(operation, Await):
        operation = script.send(3 if isinstance(operation, ReadBoundary) else None)
    rounds.want(wanted)
    assert isinstance(script.send(text(4, settled)), Decide)
    rounds.acted()
    following = script.send(None)
    assert isinstance(following, Write) == claims_again


def test_nobody_claims_while_a_round_is_open() -> None:
    rounds = rounds_of_one()
    script = rounds.serve()
    next(script)
    script.send(SAVE.to_json())
    assert script.send(None) == Hold()
    rounds.want(NOTICE)
    assert list(rounds.claim()) == []


@pytest.mark.parametrize("request_", [LEAVE, NOTICE, SAVE, Request(kind="save", worker=3, reason='"ä\n')])
def test_a_request_survives_its_way_through_a_key(request_: Request) -> None:
    assert Request.from_json(request_.to_json()) == request_


@pytest.mark.parametrize(
    ("at", "finished", "acts"),
    [(4, False, False), (5, False, True), (4, True, True), (5, True, True)],
)
def test_a_decision_is_acted_on_at_its_boundary_or_at_the_last(at: int, finished: bool, acts: bool) -> None:
    assert Decision(boundary=5, request=SAVE).acts_at(at, finished=finished) is acts


@pytest.mark.parametrize("finished", [False, True])
def test_a_main_thread_past_the_agreed_boundary_is_an_error_with_the_cure(finished: bool) -> None:
    with pytest.raises(CoordinationError, match=r"(?s)boundary 6, past the agreed 5.*HINT: give all workers"):
        Decision(boundary=5, request=SAVE).acts_at(6, finished=finished)
