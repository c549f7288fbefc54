"""What the scripts for one and for two workers found; each runs once for all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import logical_cpus  # noqa: F401 - it acts when it is imported
from tests.integration import cluster

SCRIPTS = Path(__file__).parent / "scripts"


class TwoWorkers(NamedTuple):
    """Results by case, one for each worker."""

    saved: list[dict[str, Any]]
    restored: list[dict[str, Any]]


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> TwoWorkers:
    directory = tmp_path_factory.mktemp("two-workers")
    found = {}
    for phase in ("save", "restore"):
        cluster.run_workers(
            SCRIPTS / "two_workers.py", [str(directory), phase], directory=directory, timeout_s=120
        )
        found[phase] = [
            json.loads((directory / f"{phase}-{index}.json").read_text("utf-8")) for index in range(2)
        ]
    return TwoWorkers(found["save"], found["restore"])


@pytest.fixture(scope="session")
def without_cluster(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return one_worker(tmp_path_factory, workers=0)


@pytest.fixture(scope="session")
def in_cluster_of_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return one_worker(tmp_path_factory, workers=1)


def one_worker(tmp_path_factory: pytest.TempPathFactory, workers: int) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("one-worker")
    result = directory / "result.json"
    cluster.run_workers(
        SCRIPTS / "one_worker.py", [str(result)], directory=directory, workers=workers, timeout_s=90
    )
    found: dict[str, Any] = json.loads(result.read_text("utf-8"))
    return found
