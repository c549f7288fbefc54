"""The time between SIGTERM and SIGKILL, where it is written down, is the deadline of SIGTERM's notice."""

from __future__ import annotations

import signal

import pytest

from tests.termination.metadata_cases import notice_of
from tf_preempt.errors import ConfigError
from tf_preempt.termination.grace import GraceSignalWatcher, grace_s_of


@pytest.mark.parametrize("environ", [{}, {"TF_PREEMPT_GRACE_S": " ", "TF_PREEMPT_GRACE_FILE": ""}])
def test_nobody_has_written_it_down(environ):
    assert grace_s_of(environ) is None


@pytest.mark.parametrize(("text", "grace_s"), [("30", 30.0), (" 0.5 ", 0.5)])
def test_it_is_in_a_variable(text, grace_s):
    assert grace_s_of({"TF_PREEMPT_GRACE_S": text}) == grace_s


@pytest.mark.parametrize("text", ["120\n", '"120"'])
def test_it_is_in_a_file(tmp_path, text):
    path = tmp_path / "grace"
    path.write_text(text)
    assert grace_s_of({"TF_PREEMPT_GRACE_FILE": str(path)}) == 120.0
    assert grace_s_of({"TF_PREEMPT_GRACE_FILE": str(path), "TF_PREEMPT_GRACE_S": "30"}) == 30.0


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "half a minute"])
def test_what_is_no_time_is_refused_with_its_origin(tmp_path, text):
    with pytest.raises(ConfigError, match=f"'{text}' .TF_PREEMPT_GRACE_S, an environment variable") as caught:
        grace_s_of({"TF_PREEMPT_GRACE_S": text})
    assert "terminationGracePeriodSeconds" in caught.value.hint
    path = tmp_path / "grace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"in {path}, which TF_PREEMPT_GRACE_FILE names"):
        grace_s_of({"TF_PREEMPT_GRACE_FILE": str(path)})


@pytest.mark.parametrize("content", [None, b"", b"\xff"])
def test_a_file_that_tells_nothing_is_refused(tmp_path, content):
    path = tmp_path / "grace"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="TF_PREEMPT_GRACE_FILE"):
        grace_s_of({"TF_PREEMPT_GRACE_FILE": str(path)})


def test_only_sigterm_has_the_deadline():
    with GraceSignalWatcher(("SIGTERM", "SIGUSR1"), grace_s=30.0, monotonic=lambda: 100.0) as watcher:
        assert watcher.poll() is None
        for name, deadline in (("SIGTERM", 130.0), ("SIGUSR1", None)):
            signal.raise_signal(signal.Signals[name])
            notice = notice_of(watcher)
            assert (notice.source, notice.deadline) == (name, deadline)
