from __future__ import annotations

import logging

import pytest

from tf_preempt.checkpointing.news import say


def test_news_are_printed_where_the_log_hides_info(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        say("Restored step 7.")
    assert capsys.readouterr().out == "tf_preempt: Restored step 7.\n"
    assert caplog.messages == []


def test_news_are_logged_and_not_printed_where_the_log_shows_info(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="tf_preempt"):
        say("Restored 100 % of step 7.")
    assert capsys.readouterr().out == ""
    assert caplog.messages == ["Restored 100 % of step 7."]


def test_news_are_printed_where_nobody_listens_to_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python shows warnings without any handler, and nothing below."""
    log = logging.getLogger("tf_preempt")
    monkeypatch.setattr(log, "propagate", False)
    monkeypatch.setattr(log, "level", logging.INFO)
    log.manager._clear_cache()  # type: ignore[attr-defined]
    say("Restored step 7.")
    log.manager._clear_cache()  # type: ignore[attr-defined]
    assert capsys.readouterr().out == "tf_preempt: Restored step 7.\n"
