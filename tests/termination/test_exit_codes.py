import enum
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt.errors import ConfigError
from tf_preempt.termination.exit_codes import (
    Outcome,
    classify,
    combine,
    describe,
    restart_exit_code,
    shell_status,
)

PLATFORMS = {
    "local": 42,
    "slurm": 42,
    "aws": 42,
    "azure": 42,
    "gce": 143,
    "kubernetes": 143,
    "agent_platform": 134,
}


@pytest.mark.parametrize(("platform", "code"), PLATFORMS.items())
def test_each_platform_has_the_status_that_it_restarts(platform, code):
    assert restart_exit_code(platform) == code


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_a_platform_is_told_is_what_the_supervisor_takes_for_a_restart(platform):
    assert classify(restart_exit_code(platform)) is Outcome.RESTART


def test_platform_may_be_an_enum_of_strings():
    class Platform(str, enum.Enum):
        GCE = "gce"

    assert restart_exit_code(Platform.GCE) == 143


def test_unknown_platform_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'vax'(.|\n)*HINT: use one of local, slurm"):
        restart_exit_code("vax")


@pytest.mark.parametrize(
    ("returncode", "outcome"),
    [
        (0, Outcome.SUCCESS),
        (1, Outcome.PERMANENT),
        (2, Outcome.PERMANENT),
        (42, Outcome.RESTART),
        (126, Outcome.PERMANENT),
        (127, Outcome.PERMANENT),
        (128, Outcome.PERMANENT),
        (129, Outcome.RESTART),
        (130, Outcome.INTERRUPTED),
        (131, Outcome.PERMANENT),
        (134, Outcome.RESTART),
        (137, Outcome.RESTART),
        (138, Outcome.RESTART),
        (139, Outcome.PERMANENT),
        (143, Outcome.RESTART),
        (255, Outcome.PERMANENT),
        (-signal.SIGINT, Outcome.INTERRUPTED),
        (-signal.SIGKILL, Outcome.RESTART),
        (-signal.SIGTERM, Outcome.RESTART),
        (-signal.SIGABRT, Outcome.RESTART),
        (-signal.SIGHUP, Outcome.RESTART),
        (-signal.SIGSEGV, Outcome.PERMANENT),
        (-signal.SIGFPE, Outcome.PERMANENT),
    ],
)
def test_status_is_taken_for(returncode, outcome):
    assert classify(returncode) is outcome


def test_users_own_restart_code_counts():
    assert classify(7) is Outcome.PERMANENT
    assert classify(7, restart_codes=frozenset({7})) is Outcome.RESTART


@given(st.sampled_from([int(s) for s in signal.Signals]))
def test_a_signal_means_the_same_through_a_shell_and_without(signum):
    assert classify(-signum) is classify(128 + signum)


@pytest.mark.parametrize(
    ("returncodes", "status"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 42], 42),
        ([42, 1], 1),
        ([0, 1, 42, -9], 1),
        ([-9, 42], 42),
        ([-9, 143], 143),
        ([-9, -15], 137),
        ([0, -15], 143),
        ([130, 42], 130),
        ([-2, 0], 130),
        ([130, 1], 1),
        ([3, 2], 3),
        ([-11, 42], 139),
        ([-11, 1], 1),
    ],
)
def test_cluster_of_workers_ends_with(returncodes, status):
    assert combine(returncodes) == status


def test_cluster_knows_the_users_restart_codes():
    assert combine([7, 1], restart_codes=frozenset({7})) == 1
    assert combine([7, 0], restart_codes=frozenset({7})) == 7


@given(st.lists(st.integers(-64, 255), min_size=1))
def test_clusters_status_is_that_of_one_worker_and_outranks_all_others(returncodes):
    rank = [Outcome.SUCCESS, Outcome.RESTART, Outcome.INTERRUPTED, Outcome.PERMANENT].index
    status = combine(returncodes)
    assert status in {shell_status(code) for code in returncodes}
    assert all(rank(classify(code)) <= rank(classify(status)) for code in returncodes)


@pytest.mark.parametrize(
    ("returncode", "words"),
    [(1, "exit status 1"), (-9, "killed by SIGKILL"), (137, "exit status 137"), (-63, "killed by signal 63")],
)
def test_end_in_words(returncode, words):
    assert describe(returncode) == words
