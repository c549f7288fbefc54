from __future__ import annotations

import pytest

from tf_preempt.termination import FunctionWatcher


@pytest.mark.parametrize(
    ("answers", "notices"),
    [
        ([False, False], [False, False]),
        ([True], [True]),
        ([False, True, True, True], [False, True, False, False]),
        ([True, False, True], [True, False, True]),
        ([0, "yes", None, 1], [False, True, False, True]),
    ],
    ids=["never", "at once", "stays true", "true again", "truthy"],
)
def test_one_notice_each_time_the_answer_turns_true(answers, notices):
    with FunctionWatcher(iter(answers).__next__) as watcher:
        assert [watcher.poll() is not None for _ in answers] == notices


def test_notice_names_the_function_and_has_no_deadline():
    def machine_goes_away():
        return True

    notice = FunctionWatcher(machine_goes_away).poll()
    assert notice.source == "termination_watcher_fn"
    assert "machine_goes_away returned True" in notice.reason
    assert notice.deadline is None


def test_is_polled():
    assert FunctionWatcher(lambda: False).fileno() is None


def test_failure_reaches_the_caller_and_is_no_answer():
    answers = iter([OSError("down"), True])

    def ask():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watcher = FunctionWatcher(ask)
    with pytest.raises(OSError, match="down"):
        watcher.poll()
    assert watcher.poll() is not None
