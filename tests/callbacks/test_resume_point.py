from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from tf_preempt.callbacks.resume_point import DataPlace, ResumePoint
from tf_preempt.errors import CheckpointFormatError

TRAIN = DataPlace(taken=3, batches=None, creations=2, begun=1, kept=True)
POINT = ResumePoint(
    epoch=1,
    phase="validate",
    step=2,
    stopped=False,
    logs={"loss": math.inf},
    epoch_logs={"loss": 0.1, "accuracy": 1.0},
    history={"loss": [0.3, math.nan]},
    history_epochs=[0],
    train=TRAIN,
    validate=DataPlace(taken=0, batches=3, creations=1, begun=0, kept=False),
    callbacks=[["EarlyStopping", {"attributes": {"best": -math.inf}}], ["Mine", None]],
    bound_to_workers={"train_data": "it is shuffled"},
)


def through_json(point: ResumePoint) -> ResumePoint:
    return ResumePoint.from_json(json.loads(json.dumps(point.to_json(), allow_nan=False)))


@pytest.mark.parametrize(
    "changes",
    [{}, {"phase": "train", "validate": None}, {"phase": "finished", "stopped": True, "history": {}}],
    ids=["validating", "training", "finished"],
)
def test_json_keeps_a_resume_point(changes: dict[str, Any]) -> None:
    point = dataclasses.replace(POINT, **changes)
    assert repr(through_json(point)) == repr(point)  # NaN is not equal to itself, its repr is


def test_a_checkpoint_of_an_earlier_version_is_bound_to_its_number_of_workers() -> None:
    fields = POINT.to_json()
    del fields["bound_to_workers"]
    point = ResumePoint.from_json(fields)
    assert list(point.bound_to_workers) == [""]


def test_what_the_session_adds_is_ignored() -> None:
    assert repr(ResumePoint.from_json({"fit": 1, **POINT.to_json()})) == repr(POINT)


@pytest.mark.parametrize("missing", ["train", "epoch", "callbacks"])
def test_resume_point_of_a_custom_loop_is_refused(missing: str) -> None:
    fields = POINT.to_json()
    del fields[missing]
    with pytest.raises(CheckpointFormatError, match=missing) as raised:
        ResumePoint.from_json(fields)
    assert "handler" in str(raised.value.hint)
