import errno

import pytest

from tf_preempt._slurm import SlurmJob
from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.meeting import Outcome
from tf_preempt.cli.doctor.peers import check_peers, check_same_versions, nothing_to_reach
from tf_preempt.cli.doctor.place import Member, Place
from tf_preempt.termination.auto import Platform

MEMBERS = [Member(task_type="worker", task_id=index, address=f"n{index}:700{index}") for index in range(8)]
VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
BATCH = SlurmJob(job_id=1, step_id=None, procid=0, ntasks=2, nodes=("n0", "n1"))


def met(*ranks, **changed):
    greetings = {rank: {"rank": rank, "versions": VERSIONS} for rank in ranks}
    return Outcome(**{"greetings": greetings, "callers": set(ranks), **changed})


def place(**changed):
    return Place(**{"platform": Platform.LOCAL, "resolver": "LocalClusterResolver", **changed})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "there is one worker only"),
        ({"members": tuple(MEMBERS[:1])}, "there is one worker only"),
        ({"job": BATCH}, "srun did not start this process"),
        ({"members": tuple(MEMBERS), "rank": None}, "outside the cluster"),
        ({"resolver": None}, "not checked, as the cluster is not known"),
    ],
)
def test_where_there_is_nobody_it_is_said_why(changed, said):
    finding = nothing_to_reach(place(**changed))
    assert finding.status is Status.INFO
    assert said in finding.message


def test_several_tasks_are_to_reach_each_other():
    assert nothing_to_reach(place(members=tuple(MEMBERS))) is None


def test_all_reached_is_ok():
    (finding,) = check_peers(MEMBERS[:3], 1, met(0, 2), timeout_s=30)
    assert (finding.status, finding.values) == (
        Status.OK,
        {"reached": 2, "tasks": 3, "address": "n1:7001"},
    )


@pytest.mark.parametrize(
    ("problem", "cure"),
    [
        ("nobody listens there (connection refused)", "run this command on all tasks at once (srun"),
        ("its name does not resolve (Name or service not known)", "add 'n2' to DNS or /etc/hosts"),
        ("worker 0 on n0 answers there", "let 'n2' resolve to that host's own address"),
        ("another program listens there", "another program has port 7002 of n2"),
        ("no answer within 5 s", "open port 7002 between the hosts"),
    ],
)
def test_each_problem_has_its_cure(problem, cure):
    (finding,) = check_peers(MEMBERS[:3], 0, met(1, problems={2: problem}), timeout_s=30)
    assert finding.status is Status.ERROR
    assert finding.message == f"worker 2 (n2:7002) cannot be reached within 30 s: {problem}."
    assert cure in finding.hint
    assert finding.values == {"ranks": [2], "addresses": ["n2:7002"]}


def test_many_tasks_with_one_problem_are_one_line():
    problems = dict.fromkeys(range(1, 8), "no answer within 5 s")
    (finding,) = check_peers(MEMBERS, 0, met(problems=problems), timeout_s=30)
    assert "worker 4 (n4:7004) and 3 more cannot be reached" in finding.message


@pytest.mark.parametrize(
    ("number", "said", "cure"),
    [
        (errno.EADDRINUSE, "Port 7000 of n0 is taken by another program.", "srun --resv-ports=N"),
        (errno.EACCES, "Nobody can listen at port 7000 of n0: no.", "take a port from 1024 on"),
    ],
)
def test_an_own_port_that_cannot_be_had_is_an_error(number, said, cure):
    (finding,) = check_peers(
        MEMBERS[:2], 0, met(1, callers=set(), port_problem=OSError(number, "no")), timeout_s=30
    )
    assert (finding.status, finding.name, finding.message) == (Status.ERROR, "port", said)
    assert cure in finding.hint


def test_a_task_that_is_reached_but_does_not_reach_this_one_is_an_error():
    (finding,) = check_peers(MEMBERS[:2], 0, met(1, callers=set()), timeout_s=30)
    assert finding.status is Status.ERROR
    assert (
        "worker 1 (n1:7001) can be reached from here, but did not reach this task at n0:7000"
        in finding.message
    )
    assert "open port 7000 of n0" in finding.hint
    assert finding.values == {"ranks": [1]}


def test_other_versions_on_another_host_are_an_error():
    outcome = met(1, 2)
    outcome.greetings[2] = {"rank": 2, "versions": {**VERSIONS, "keras": "3.14.0"}}
    (finding,) = check_same_versions(VERSIONS, MEMBERS, outcome)
    assert finding.message == "This task has keras 3.15.1, but worker 2 (n2:7002): 3.14.0."
    assert finding.values == {"package": "keras", "own": "3.15.1", "other": "3.14.0", "ranks": [2]}
    assert check_same_versions(VERSIONS, MEMBERS, met(1, 2)) == []


def test_a_greeting_without_versions_is_another_version():
    outcome = met(1)
    outcome.greetings[1] = {"rank": 1, "versions": None}
    assert len(check_same_versions(VERSIONS, MEMBERS, outcome)) == 2
