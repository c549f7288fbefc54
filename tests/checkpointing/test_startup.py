"""Beginning together, with a thread per worker on one store in memory."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.checkpointing.test_committer import Training
from tf_preempt import errors
from tf_preempt.checkpointing import startup
from tf_preempt.checkpointing.directory import check_shared
from tf_preempt.checkpointing.key_value import LocalStore
from tf_preempt.checkpointing.startup import Cluster, Plan, begin_together

TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network file system here that would go on showing an old listing."""
    monkeypatch.setattr(startup, "check_shared", functools.partial(check_shared, patience_s=0.3))


def begin(
    directories: list[pathlib.Path],
    *,
    fit: int = 0,
    sizes: list[int] | None = None,
    silent: int | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Plan | Exception]:
    """What `begin_together` came to on each worker; worker `silent` does not come."""
    store, count = LocalStore(), len(directories)

    def one(worker: int) -> Plan | Exception:
        training = Training(directories[worker], size=(sizes or [4] * count)[worker])
        try:
            return begin_together(
                training.committer,
                store,
                Cluster(worker=worker, workers=count),
                prefix="p",
                fit=fit,
                timeout_s=timeout_s,
            )
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(one, worker) for worker in range(count) if worker != silent]
        return [future.result(TIMEOUT_S) for future in futures]


def commit_two(
    directory: pathlib.Path, *, workers: int, size: int = 4, bound: dict[str, str] | None = None
) -> None:
    training = Training(directory, size=size)
    for number in (1, 2):
        record = training.write(number)
        if bound is not None:
            record = dataclasses.replace(record, resume=record.resume | {startup.BOUND: bound})
        training.committer.commit(record, incarnation=number - 1, workers=workers, now=0.0, seconds=0.0)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_new_directory_is_begun_afresh_by_all(tmp_path: pathlib.Path, workers: int) -> None:
    directory = tmp_path / "run"
    plans = begin([directory] * workers)
    assert plans == [Plan(incarnation=0, first_number=1, restore=None, adopt=None)] * workers
    assert os.listdir(directory) == []


@pytest.mark.parametrize("workers", [1, 3])
def test_all_go_on_from_the_newest_checkpoint_with_the_same_numbers(
    tmp_path: pathlib.Path, workers: int
) -> None:
    commit_two(tmp_path, workers=workers)
    before = sorted(os.listdir(tmp_path))
    plans = begin([tmp_path] * workers)
    assert plans == [plans[0]] * workers
    assert isinstance(plans[0], Plan)
    assert plans[0].restore is not None
    assert (plans[0].restore.number, plans[0].first_number, plans[0].incarnation) == (2, 3, 2)
    assert sorted(os.listdir(tmp_path)) == before


def test_another_fit_begins_afresh_in_the_same_directory(tmp_path: pathlib.Path) -> None:
    commit_two(tmp_path, workers=2)
    plans = begin([tmp_path] * 2, fit=1)
    assert plans == [Plan(incarnation=2, first_number=3, restore=None, adopt=None)] * 2


def test_a_damaged_newest_is_passed_over_on_all_workers(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit_two(tmp_path, workers=2)
    (tmp_path / "ckpt-2.index").unlink()
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        plans = begin([tmp_path] * 2)
    assert [plan.restore.number for plan in plans if isinstance(plan, Plan) and plan.restore] == [1, 1]
    assert len(caplog.messages) == 1


def check_errors(outcomes: list[Plan | Exception], kind: type[errors.TfPreemptError], *texts: str) -> None:
    assert [type(outcome) for outcome in outcomes] == [kind] * len(outcomes)
    for outcome in outcomes:
        assert isinstance(outcome, errors.TfPreemptError)
        assert str(outcome).count("HINT: ") == 1
        assert outcome.hint
        for text in texts:
            assert text in str(outcome)


@pytest.mark.parametrize("other", [1, 2])
def test_a_directory_that_one_worker_does_not_share_is_an_error_on_all_and_nothing_is_left(
    tmp_path: pathlib.Path, other: int
) -> None:
    directories = [tmp_path / "shared" / "run"] * 3
    directories[other] = tmp_path / "elsewhere"
    check_errors(
        begin(directories), errors.DirectoryNotSharedError, f"Worker {other} does not see", "elsewhere"
    )
    assert os.listdir(tmp_path) == []


def test_an_unshared_directory_with_checkpoints_stays_as_it_is(tmp_path: pathlib.Path) -> None:
    commit_two(tmp_path / "run", workers=2)
    before = sorted(os.listdir(tmp_path / "run"))
    check_errors(begin([tmp_path / "run", tmp_path / "elsewhere"]), errors.DirectoryNotSharedError)
    assert sorted(os.listdir(tmp_path / "run")) == before


def test_a_directory_that_the_chief_cannot_write_is_an_error_on_all(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    outcomes = begin([tmp_path / "file" / "run"] * 3)
    check_errors(outcomes, errors.DirectoryNotWritableError, "cannot be written to")


@pytest.mark.parametrize("sizes", [[5, 5, 5], [5, 4, 4], [4, 5, 4], [4, 4, 5]])
def test_another_model_on_any_worker_is_an_error_on_all_and_nothing_is_touched(
    tmp_path: pathlib.Path, sizes: list[int]
) -> None:
    commit_two(tmp_path, workers=3)
    before = sorted(os.walk(tmp_path))
    outcomes = begin([tmp_path] * 3, sizes=sizes)
    check_errors(
        outcomes, errors.CheckpointMismatchError, "checkpoint v:0 (4,) float32, program v:0 (5,) float32"
    )
    assert sorted(os.walk(tmp_path)) == before


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1), (3, 2)])
def test_another_number_of_workers_is_an_error_on_all(tmp_path: pathlib.Path, then: int, now: int) -> None:
    commit_two(tmp_path, workers=then)
    outcomes = begin([tmp_path] * now)
    check_errors(outcomes, errors.CheckpointMismatchError, f"written by {then} worker(s); this job has {now}")


@pytest.mark.parametrize(("then", "now"), [(1, 2), (2, 1), (3, 2)])
def test_another_number_of_workers_goes_on_with_data_that_allows_it(
    tmp_path: pathlib.Path, then: int, now: int
) -> None:
    commit_two(tmp_path, workers=then, bound={})
    plans = begin([tmp_path] * now)
    assert [plan.restore.name for plan in plans] == ["ckpt-2.manifest.json"] * now


def test_data_that_is_bound_to_its_workers_is_named_with_the_reason_and_the_cure(
    tmp_path: pathlib.Path,
) -> None:
    commit_two(tmp_path, workers=2, bound={"train_data": "it is shuffled"})
    before = sorted(os.walk(tmp_path))
    message = "this job has 3, which cannot go on with the data 'train_data': it is shuffled."
    outcomes = begin([tmp_path] * 3)
    check_errors(outcomes, errors.CheckpointMismatchError, message)
    assert "HINT: start 2 worker(s), or use another directory; data sets of tf_preempt.data" in str(
        outcomes[0]
    )
    assert sorted(os.walk(tmp_path)) == before
    assert len(begin([tmp_path] * 2)) == 2


def test_a_newer_format_is_an_error_on_all_and_nothing_is_touched(tmp_path: pathlib.Path) -> None:
    commit_two(tmp_path, workers=2)
    (tmp_path / "ckpt-2.manifest.json").write_text('{"format": 2}')
    before = sorted(os.walk(tmp_path))
    check_errors(begin([tmp_path] * 2), errors.NewerFormatError, "has format 2")
    assert sorted(os.walk(tmp_path)) == before


def test_an_error_of_the_file_system_reaches_all_and_nobody_waits(tmp_path: pathlib.Path) -> None:
    commit_two(tmp_path, workers=2)
    (tmp_path / "ckpt-2.manifest.json").unlink()
    (tmp_path / "ckpt-2.manifest.json").mkdir()
    before = sorted(os.listdir(tmp_path))
    chief, other = begin([tmp_path] * 2)
    assert isinstance(chief, IsADirectoryError)
    assert type(other) is errors.TfPreemptError
    assert "IsADirectoryError" in str(other)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("silent", "waited_for"), [(0, "the chief to look"), (1, "worker 1 to look"), (2, "worker 2 to look")]
)
def test_a_worker_that_never_comes_is_an_error_on_all_others_in_time_and_nothing_is_left(
    tmp_path: pathlib.Path, silent: int, waited_for: str
) -> None:
    outcomes = begin([tmp_path / "run"] * 3, silent=silent, timeout_s=0.3)
    assert [type(outcome) for outcome in outcomes] == [errors.CoordinationError] * 2
    assert waited_for in str(outcomes[0])
    assert "HINT: start all workers" in str(outcomes[0])
    assert os.listdir(tmp_path) == []
