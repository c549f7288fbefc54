"""One order for 1, 2 replicas and 2 workers, from each step of two epochs on, in loops and in `fit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data_pipeline.lives import assert_each_once
from tests.integration import cluster

SCRIPT = Path(__file__).parent / "scripts" / "by_index.py"
EXAMPLES = 11  # as in the script
KINDS = ["from_source", "from_arrays", "prefetched"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("by-index")
    for workers in (0, 2):
        cluster.run_workers(SCRIPT, [str(directory)], directory=directory, workers=workers, timeout_s=200)
    return {path.stem: json.loads(path.read_text("utf-8")) for path in directory.glob("*.json")}


def global_batches(parts: list[list[list[list[int]]]]) -> list[list[list[int]]]:
    """Batches by epoch, of the parts of all replicas of each batch."""
    return [[[index for part in batch for index in part] for batch in epoch] for epoch in parts]


@pytest.mark.parametrize("kind", KINDS)
def test_global_batches_are_the_same_for_any_number_of_replicas(found: dict[str, Any], kind: str) -> None:
    alone = global_batches(found["alone"]["epochs"][kind])
    assert_each_once(alone, EXAMPLES)
    assert global_batches(found["replicas"]["epochs"][kind]) == alone
    of_workers = zip(found["worker-0"]["epochs"][kind], found["worker-1"]["epochs"][kind], strict=True)
    together = [[[*a, *b] for a, b in zip(*epochs, strict=True)] for epochs in of_workers]
    assert global_batches(together) == alone


@pytest.mark.parametrize("name", ["replicas", "worker-0", "worker-1"])
def test_fit_trains_on_the_same_batches(found: dict[str, Any], name: str) -> None:
    """Also though Keras looks at an element before training, and what is prefetched begins epochs ahead."""
    alone, other = found["alone"]["trained"], found[name]["trained"]
    for key in ("weights", "loss", "val_loss"):
        for one, another in zip(alone[key], other[key], strict=True):
            np.testing.assert_allclose(one, another, rtol=1e-5, atol=1e-6, err_msg=key)


def test_nothing_is_warned_of(found: dict[str, Any]) -> None:
    """A Python function in the pipeline is no reason to."""
    assert {name: one["warnings"] for name, one in found.items()} == {name: [] for name in found}
