from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest

from tf_preempt.checkpointing.random_state import set_random_state, take_random_state


@pytest.fixture(autouse=True)
def _own_state() -> Iterator[None]:
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def draws() -> list[float]:
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.normal()),
        *np.random.permutation(5).tolist(),
    ]


@pytest.mark.parametrize("drawn", [0, 1, 2, 3])
def test_both_generators_go_on_bit_for_bit_after_a_way_through_json(drawn: int) -> None:
    """After an odd number of normal draws both generators hold one back."""
    random.seed(1)
    np.random.seed(1)
    for _ in range(drawn):
        draws()
    state = json.loads(json.dumps(take_random_state(), allow_nan=False))
    expected = [draws() for _ in range(3)]
    random.seed(99)
    np.random.seed(99)
    set_random_state(state)
    assert [draws() for _ in range(3)] == expected


def test_taking_the_state_draws_nothing() -> None:
    random.seed(1)
    np.random.seed(1)
    expected = draws()
    random.seed(1)
    np.random.seed(1)
    take_random_state()
    assert draws() == expected
