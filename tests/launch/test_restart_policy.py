import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_preempt.errors import ConfigError
from tf_preempt.goodput.status_file import Status
from tf_preempt.launch.restart_policy import Incarnation, Restart, RestartPolicy, Stop
from tf_preempt.termination.exit_codes import Outcome, classify

EXACT = RestartPolicy(jitter=0.0)


def ended(returncode=42, *, committed=None, restored=None, commits=None):
    if commits is None:
        commits = 0 if committed is None else 1
    status = Status(incarnation=0, restored_step=restored, committed_step=committed, commits=commits)
    return Incarnation(returncode=returncode, status=status)


SILENT = Incarnation(returncode=42)
FURTHER = ended(committed=20, restored=10)
STUCK = ended(committed=10, restored=10, commits=0)


@pytest.mark.parametrize(
    ("returncode", "exit_code", "meaning"),
    [
        (0, 0, "exit status 0 = finished"),
        (1, 1, "exit status 1 = permanent error"),
        (2, 2, "exit status 2 = permanent error"),
        (127, 127, "exit status 127 = permanent error"),
        (-11, 139, "killed by SIGSEGV = permanent error"),
        (-2, 130, "killed by SIGINT = Ctrl-C"),
        (130, 130, "exit status 130 = Ctrl-C"),
    ],
)
def test_program_that_asks_for_no_restart_gets_none(returncode, exit_code, meaning):
    assert EXACT.decide([Incarnation(returncode=returncode)]) == Stop(exit_code=exit_code, reason=meaning)


@pytest.mark.parametrize(
    ("incarnation", "reason"),
    [
        (ended(42, committed=318), "exit status 42 = preempted, committed step 318"),
        (ended(143), "exit status 143 = preempted"),
        (ended(134), "exit status 134 = preempted"),
        (ended(137), "exit status 137 = killed by SIGKILL, or preempted"),
        (ended(138), "exit status 138 = killed by SIGUSR1, or preempted"),
        (Incarnation(returncode=-9), "killed by SIGKILL = may work when tried again"),
    ],
)
def test_preempted_program_is_restarted_and_the_reason_given(incarnation, reason):
    assert EXACT.decide([incarnation]) == Restart(delay_s=1.0, reason=reason)


def test_users_own_restart_code_is_restarted():
    incarnation = Incarnation(returncode=7)
    assert isinstance(EXACT.decide([incarnation]), Stop)
    decision = RestartPolicy(restart_codes=frozenset({7})).decide([incarnation])
    assert isinstance(decision, Restart)
    assert decision.reason == "exit status 7 = preempted"


def test_budget_counts_all_restarts_and_keeps_the_programs_status():
    policy = RestartPolicy(max_restarts=2)
    assert isinstance(policy.decide([FURTHER] * 2), Restart)
    decision = policy.decide([FURTHER] * 3)
    assert (decision.exit_code, decision.reason.split("; ")[1]) == (42, "all 2 restarts are used up")


def test_no_budget_means_no_restart():
    assert isinstance(RestartPolicy(max_restarts=0).decide([FURTHER]), Stop)


@pytest.mark.parametrize(
    ("history", "goes_on"),
    [
        ([STUCK], True),
        ([STUCK, STUCK], False),
        ([FURTHER, STUCK], True),
        ([STUCK, FURTHER, STUCK], True),
        ([FURTHER, STUCK, STUCK], False),
        ([SILENT, SILENT, SILENT], True),
        ([SILENT, STUCK], True),
        ([SILENT, STUCK, STUCK], False),
        ([FURTHER, SILENT], True),
        ([FURTHER, SILENT, SILENT], False),
        ([STUCK, SILENT], False),
    ],
)
def test_two_lives_in_a_row_without_progress_are_the_end(history, goes_on):
    decision = EXACT.decide(history)
    assert isinstance(decision, Restart) is goes_on
    if not goes_on:
        assert decision.exit_code == 1
        assert decision.reason.endswith("; no progress 2 times in a row")


@pytest.mark.parametrize(
    ("status", "further"),
    [
        ({"committed": 20, "restored": 10}, True),
        ({"committed": 1}, True),
        ({"committed": 10, "restored": 10}, True),  # a validation went on, no step did
        ({"committed": 0}, False),
        ({"committed": 0, "restored": 0}, False),
        ({"committed": 10, "restored": 10, "commits": 0}, False),
        ({"restored": 10}, False),
        ({}, False),
    ],
)
def test_progress_is_a_commit_beyond_the_start(status, further):
    assert isinstance(EXACT.decide([STUCK, ended(**status)]), Restart) is further


def test_wait_doubles_without_progress_up_to_its_limit_and_starts_again_after_some():
    policy = RestartPolicy(jitter=0.0, backoff_initial_s=1.0, backoff_max_s=10.0, max_restarts=99)
    delays = [policy.decide([SILENT] * n).delay_s for n in range(1, 7)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert policy.decide([*[SILENT] * 6, FURTHER]).delay_s == 1.0


@pytest.mark.parametrize(("drawn", "delay_s"), [(0.0, 8.0), (0.5, 6.0), (1.0, 4.0)])
def test_jitter_shortens_the_wait_by_a_random_part(drawn, delay_s):
    policy = RestartPolicy(jitter=0.5, backoff_initial_s=8.0, random=lambda: drawn)
    assert policy.decide([SILENT]).delay_s == delay_s


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_restarts": -1},
        {"max_no_progress": 0},
        {"jitter": 1.5},
        {"jitter": float("nan")},
        {"backoff_initial_s": -1.0},
        {"backoff_initial_s": float("nan")},
        {"backoff_max_s": 0.5},
        {"backoff_max_s": float("inf")},
        {"restart_codes": frozenset({256})},
        {"restart_codes": frozenset({0})},
    ],
)
def test_wrong_number_is_named(wrong):
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}="):
        RestartPolicy(**wrong)


def test_nothing_can_be_decided_before_anything_ended():
    with pytest.raises(ConfigError, match="history"):
        EXACT.decide([])


incarnations = st.builds(
    Incarnation,
    returncode=st.sampled_from([0, 1, 42, 130, 134, 137, 143, -9, -11, -15]),
    status=st.none()
    | st.builds(
        Status,
        incarnation=st.just(0),
        restored_step=st.none() | st.integers(0, 5),
        committed_step=st.none() | st.integers(0, 5),
        commits=st.integers(0, 2),
    ),
)


@given(
    history=st.lists(incarnations, min_size=1, max_size=30),
    max_restarts=st.integers(0, 30),
    initial=st.floats(0, 100),
    more=st.floats(0, 100),
    jitter=st.floats(0, 1),
    drawn=st.floats(0, 1),
)
def test_no_history_breaks_the_rules(history, max_restarts, initial, more, jitter, drawn):
    policy = RestartPolicy(
        max_restarts=max_restarts,
        backoff_initial_s=initial,
        backoff_max_s=initial + more,
        jitter=jitter,
        random=lambda: drawn,
    )
    decision = policy.decide(history)
    wants_restart = classify(history[-1].returncode) is Outcome.RESTART
    if isinstance(decision, Restart):
        assert wants_restart
        assert len(history) <= max_restarts
        assert 0 <= decision.delay_s <= initial + more
    else:
        assert 0 <= decision.exit_code <= 255
        assert wants_restart or classify(decision.exit_code) is classify(history[-1].returncode)


@given(length=st.integers(1, 5000))
def test_wait_stays_finite_however_often_nothing_was_achieved(length):
    policy = RestartPolicy(max_restarts=5000, jitter=0.0)
    assert policy.decide([SILENT] * length).delay_s <= 60.0
