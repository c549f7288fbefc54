"""What a training tells the platform when it leaves, and when: real trainings, a server of this machine."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.checkpointing.test_committer import committed
from tests.checkpointing.test_session import Loop, heard
from tf_preempt import errors
from tf_preempt.checkpointing import session
from tf_preempt.termination.azure import AzureWatcher
from tf_preempt.termination.config import TerminationConfig
from tf_preempt.testing import FakeMetadataServer


@pytest.fixture
def server() -> Iterator[FakeMetadataServer]:
    with FakeMetadataServer() as server:
        yield server


class Training:
    """A training on a VM of Azure; notes what was committed when Azure was told to go on."""

    def __init__(self, directory: pathlib.Path, server: FakeMetadataServer, **options: Any) -> None:
        self.directory, self._server = directory, server
        self.committed_when_told: list[list[int]] = []
        environ = server.environ("azure")
        acknowledge = server.azure._acknowledge

        def note(body: bytes) -> Any:
            self.committed_when_told.append(committed(directory))
            return acknowledge(body)

        server.azure._acknowledge = note  # type: ignore[method-assign]
        self._watcher = AzureWatcher(acknowledges=True, environ=environ, pause_s=0.02)
        given = options.pop("config", {})
        config = TerminationConfig(**{"watchers": [self._watcher], **given})
        self.loop = Loop(directory, environ=environ, config=config, **options)

    def __enter__(self) -> Training:
        self.loop.start()
        self._server.wait_until_asked("scheduledevents")
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.session.close()
        self._watcher.close()


def test_azure_is_told_after_the_commit(tmp_path: pathlib.Path, server: FakeMetadataServer) -> None:
    with Training(tmp_path, server) as training:
        training.loop.step()
        server.azure.schedule("Preempt")
        with pytest.raises(SystemExit) as raised:
            training.loop.step_until()
    assert raised.value.code == 42
    assert server.azure.acknowledged == ["event-1"]
    assert training.committed_when_told == [[1]]


def test_azure_is_told_after_the_last_save_of_a_grace_period(
    tmp_path: pathlib.Path, server: FakeMetadataServer
) -> None:
    with Training(tmp_path, server, config={"grace_period": 3}) as training:
        training.loop.step()
        server.azure.schedule("Preempt")
        with pytest.raises(SystemExit):
            training.loop.step_until()
    assert training.committed_when_told == [[1, 2]]


def test_azure_is_not_told_where_nothing_could_be_committed(
    tmp_path: pathlib.Path, server: FakeMetadataServer
) -> None:
    with Training(tmp_path, server) as training:
        (tmp_path / "ckpt-1.manifest.json").mkdir()
        server.azure.schedule("Preempt")
        with pytest.raises(SystemExit):
            training.loop.step_until()
    assert server.azure.acknowledged == []


def test_azure_is_not_told_for_a_program_that_goes_on(
    tmp_path: pathlib.Path, server: FakeMetadataServer
) -> None:
    with Training(tmp_path, server, raise_on_preemption=True) as training:
        server.azure.schedule("Preempt")
        with pytest.raises(errors.Preempted):
            training.loop.step_until()
    assert server.azure.acknowledged == []
    assert committed(tmp_path) == [1]


def test_azure_is_not_told_where_the_training_was_complete_and_the_program_goes_on(
    tmp_path: pathlib.Path, server: FakeMetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_unanswered", [])  # the next training of this process is another program's
    with Training(tmp_path, server) as training, heard("Notice on worker 0", 1) as noticed:
        server.azure.schedule("Preempt")
        assert noticed.wait(30)
        training.loop.session.finish(training.loop.capture)
    assert server.azure.acknowledged == []
    assert committed(tmp_path) == [1]


def test_a_notice_of_another_source_is_none_of_azures_business(
    tmp_path: pathlib.Path, server: FakeMetadataServer
) -> None:
    with Training(tmp_path, server) as training:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            training.loop.step_until()
    assert server.azure.acknowledged == []
    assert committed(tmp_path) == [1]
