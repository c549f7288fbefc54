"""A worker that fails by its own error ends the training of the others for good, not with a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cluster import WorkersFailedError, run_workers

SCRIPT = Path(__file__).parent / "scripts" / "own_error.py"


@pytest.mark.parametrize("way", ["fit", "loop"])
def test_the_other_worker_leaves_with_a_permanent_status_and_the_reason(tmp_path: Path, way: str) -> None:
    with pytest.raises(WorkersFailedError) as caught:
        run_workers(SCRIPT, [str(tmp_path / "checkpoints"), way], directory=tmp_path)
    told = str(caught.value)
    assert "--- worker 0: status 1\n" in told
    assert "--- worker 1: status 1\n" in told
    assert "The training ends, because worker 1 ended with ValueError: no such column: price" in told
