"""A worker that fails by its own error ends the training of the others for good, not with a restart."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from tests.integration.cluster import WorkersFailedError, run_workers

SCRIPT = Path(__file__).parent / "scripts" / "own_error.py"
WAYS = ("fit", "loop")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """How both ways end, which wait most of their time and so run beside each other."""
    places = {way: tmp_path_factory.mktemp(way) for way in WAYS}

    def run(way: str) -> str:
        place = places[way]
        with pytest.raises(WorkersFailedError) as caught:
            run_workers(SCRIPT, [str(place / "checkpoints"), way], directory=place)
        return str(caught.value)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return dict(zip(WAYS, pool.map(run, WAYS), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_the_other_worker_leaves_with_a_permanent_status_and_the_reason(
    reports: dict[str, str], way: str
) -> None:
    told = reports[way]
    assert "--- worker 0: status 1\n" in told
    assert "--- worker 1: status 1\n" in told
    assert "The training ends, because worker 1 ended with ValueError: no such column: price" in told
