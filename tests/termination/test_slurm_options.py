from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.termination import SlurmOptions


def test_by_default_the_job_is_requeued_as_long_as_it_makes_progress():
    assert dataclasses.asdict(SlurmOptions()) == {
        "requeue": "auto",
        "max_requeues": None,
        "max_no_progress": 2,
        "time_limit_lead_s": None,
        "stay_s": 600.0,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("requeue", "never"),
        ("max_requeues", 0),
        ("max_requeues", 20),
        ("max_no_progress", 1),
        ("time_limit_lead_s", 0),
        ("time_limit_lead_s", 0.5),
        ("time_limit_lead_s", np.float32(300)),
        ("stay_s", 0),
    ],
)
def test_what_may_be_said(name, value):
    assert getattr(SlurmOptions(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("requeue", "always", "'auto' or 'never'"),
        ("requeue", None, "'auto' or 'never'"),
        ("requeue", ["auto"], "'auto' or 'never'"),
        ("max_requeues", -1, "a whole number of at least 0"),
        ("max_requeues", 1.0, "a whole number of at least 0"),
        ("max_requeues", True, "a whole number of at least 0"),
        ("max_requeues", "3", "a whole number of at least 0"),
        ("max_no_progress", 0, "a whole number of at least 1"),
        ("max_no_progress", None, "a whole number of at least 1"),
        ("time_limit_lead_s", -1, "a number of seconds from 0"),
        ("time_limit_lead_s", float("nan"), "a number of seconds from 0"),
        ("time_limit_lead_s", float("inf"), "a number of seconds from 0"),
        ("time_limit_lead_s", "60", "a number of seconds from 0"),
        ("time_limit_lead_s", False, "a number of seconds from 0"),
        ("stay_s", None, "a number of seconds from 0"),
        ("stay_s", -0.1, "a number of seconds from 0"),
    ],
)
def test_what_may_not_be_said_is_named_with_its_value(name, value, expected):
    with pytest.raises(ConfigError) as caught:
        SlurmOptions(**{name: value})
    assert f"SlurmOptions: {name}={value!r}; expected {expected}" in str(caught.value)
    default = next(field.default for field in dataclasses.fields(SlurmOptions) if field.name == name)
    assert caught.value.hint == f"leave {name} out to have {default!r}"


def test_options_are_named_and_do_not_change():
    with pytest.raises(TypeError):
        SlurmOptions("never")
    with pytest.raises(dataclasses.FrozenInstanceError):
        SlurmOptions().requeue = "never"
