"""Tasks meet over real sockets of this machine; each task is a thread."""

import concurrent.futures
import contextlib
import socket

import pytest

from tf_preempt.cli.doctor.meeting import meet
from tf_preempt.cli.doctor.place import Member

PATIENT_S = 20.0


def free_ports(count):
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in held]


def cluster(count, host="127.0.0.1"):
    return [
        Member(task_type="worker", task_id=index, address=f"{host}:{port}")
        for index, port in enumerate(free_ports(count))
    ]


def hold(members, ranks, *, timeout_s, report=None):
    """What each of `ranks` has come to; the others do not take part."""

    def take_part(rank):
        greeting = {"host": f"h{rank}", "proof": "p" if rank == 0 else None}
        return meet(
            members,
            rank,
            greeting,
            timeout_s=timeout_s,
            report=report or (lambda outcome: {"seen": outcome.greetings[0]["proof"], "by": rank}),
        )

    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        return dict(zip(ranks, pool.map(take_part, ranks), strict=True))


@pytest.mark.parametrize("count", [2, 3, 8])
def test_all_meet_all_and_report_to_the_first(count):
    outcomes = hold(cluster(count), range(count), timeout_s=PATIENT_S)
    for rank, outcome in outcomes.items():
        others = set(range(count)) - {rank}
        assert outcome.callers == set(outcome.greetings) == others
        assert {other: greeting["host"] for other, greeting in outcome.greetings.items()} == {
            other: f"h{other}" for other in others
        }
        assert (outcome.problems, outcome.port_problem) == ({}, None)
    assert outcomes[0].reports == {rank: {"seen": "p", "by": rank} for rank in range(1, count)}
    assert all(not outcomes[rank].reports for rank in range(1, count))


def test_a_name_with_several_addresses_is_reached():
    outcomes = hold(cluster(2, host="localhost"), range(2), timeout_s=PATIENT_S)
    assert all(not outcome.problems for outcome in outcomes.values())


def test_a_task_that_is_not_there_is_named_when_the_time_is_over():
    outcomes = hold(cluster(3), [0, 1], timeout_s=0.5)
    for rank, other in ((0, 1), (1, 0)):
        assert outcomes[rank].problems == {2: "nobody listens there (connection refused)"}
        assert outcomes[rank].callers == {other}
    assert set(outcomes[0].reports) == {1}


def test_a_name_that_does_not_resolve_is_named():
    members = [*cluster(1), Member(task_type="worker", task_id=1, address="no-such-host.invalid:5")]
    problem = hold(members, [0], timeout_s=0.5)[0].problems[1]
    assert problem.startswith("its name does not resolve (")


def test_a_port_that_is_taken_is_told_and_the_others_are_reached_all_the_same():
    members = cluster(2)
    with socket.create_server(("", members[0].port)):
        outcome = hold(members, [0], timeout_s=0.3)[0]
    assert isinstance(outcome.port_problem, OSError)
    assert "Address already in use" in str(outcome.port_problem)
    assert outcome.problems == {1: "nobody listens there (connection refused)"}


def serving(answer):
    """A program that is none of ours, which answers each line with `answer`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

    @contextlib.contextmanager
    def running():
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(serve)
            try:
                yield listener.getsockname()[1]
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()

    return running()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another program listens there"),
        (b"[1, 2]\n", "another program listens there"),
        (b'{"tf_preempt_doctor": 9, "rank": 1}\n', "another program listens there"),
        (
            b'{"tf_preempt_doctor": 1, "rank": 2, "name": "worker 2", "host": "h"}\n',
            "worker 2 on h answers there",
        ),
        (b"", "the connection was closed without a word"),
        (b"x" * 100_000, "another program listens there"),
    ],
)
def test_whoever_answers_has_to_be_the_task_that_was_called(answer, problem):
    with serving(answer) as port:
        members = [*cluster(1), Member(task_type="worker", task_id=1, address=f"127.0.0.1:{port}")]
        outcome = hold(members, [0], timeout_s=0.3)[0]
    assert problem in outcome.problems[1]
    assert outcome.greetings == {}


def test_a_task_that_comes_late_is_waited_for():
    members = cluster(2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with socket.create_server(("127.0.0.1", members[1].port)) as somebody:
            somebody.settimeout(PATIENT_S)
            first = pool.submit(hold, members, [0], timeout_s=PATIENT_S)
            somebody.accept()[0].close()  # the first has called in vain
        hold(members, [1], timeout_s=PATIENT_S)
        outcome = first.result(timeout=PATIENT_S)[0]
    assert (set(outcome.greetings), outcome.problems, outcome.callers) == ({1}, {}, {1})


def test_the_port_is_free_again_afterwards():
    members = cluster(2)
    hold(members, range(2), timeout_s=PATIENT_S)
    for member in members:
        socket.create_server(("", member.port)).close()


def test_an_error_of_a_report_is_not_swallowed():
    def fail(outcome):
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        hold(cluster(2), [1], timeout_s=0.1, report=fail)
