from __future__ import annotations

import datetime

import pytest

from tf_preempt.checkpointing.cadence import Cadence
from tf_preempt.errors import ConfigError


@pytest.mark.parametrize(
    ("save_every", "cadence", "by_clock", "reason"),
    [
        ("auto", Cadence(kind="auto"), True, "periodic"),
        ("epoch", Cadence(kind="epoch"), False, "every epoch"),
        (None, Cadence(kind="never"), False, "periodic"),
        (1, Cadence(kind="steps", steps=1), False, "every 1 steps"),
        (500, Cadence(kind="steps", steps=500), False, "every 500 steps"),
        (datetime.timedelta(minutes=10), Cadence(kind="seconds", seconds=600.0), True, "every 600 s"),
        (datetime.timedelta(seconds=0.5), Cadence(kind="seconds", seconds=0.5), True, "every 0.5 s"),
    ],
)
def test_save_every_is_read(save_every: object, cadence: Cadence, by_clock: bool, reason: str) -> None:
    parsed = Cadence.parse(save_every)  # type: ignore[arg-type]
    assert parsed == cadence
    assert parsed.by_clock is by_clock
    assert parsed.describe() == reason


@pytest.mark.parametrize(
    "save_every",
    [0, -1, True, False, 2.5, "", "Auto", "10m", [], datetime.timedelta(0), datetime.timedelta(seconds=-1)],
)
def test_what_is_no_cadence_is_refused_by_name_and_value(save_every: object) -> None:
    with pytest.raises(ConfigError, match=r"(?s)save_every=.*expected 'auto'.*HINT") as raised:
        Cadence.parse(save_every)  # type: ignore[arg-type]
    assert f"save_every={save_every!r}" in str(raised.value)


@pytest.mark.parametrize(
    ("every", "step", "saved_step", "due"),
    [
        (10, 0, 0, False),
        (10, 9, 0, False),
        (10, 10, 0, True),
        (10, 11, 10, False),
        (10, 19, 10, False),
        (10, 20, 10, True),
        (10, 24, 8, True),  # several steps per execution: the multiple itself is never a boundary
        (10, 24, 20, False),
        (10, 25, 13, True),  # after a resume at a step that is no multiple
        (1, 1, 0, True),
        (1, 1, 1, False),
    ],
)
@pytest.mark.parametrize("new_epoch", [False, True])
def test_every_so_many_steps(every: int, step: int, saved_step: int, due: bool, new_epoch: bool) -> None:
    cadence = Cadence(kind="steps", steps=every)
    assert cadence.due_at_boundary(step=step, saved_step=saved_step, new_epoch=new_epoch) is due


@pytest.mark.parametrize(
    ("step", "saved_step", "new_epoch", "due"),
    [
        (100, 0, True, True),
        (100, 0, False, False),
        (100, 100, True, False),  # saved already, e.g. before the validation
        (0, 0, True, False),  # nothing is trained yet
    ],
)
def test_every_epoch(step: int, saved_step: int, new_epoch: bool, due: bool) -> None:
    cadence = Cadence(kind="epoch")
    assert cadence.due_at_boundary(step=step, saved_step=saved_step, new_epoch=new_epoch) is due


@pytest.mark.parametrize("kind", ["auto", "seconds", "never"])
def test_clock_and_never_are_not_due_at_boundaries(kind: str) -> None:
    cadence = Cadence(kind=kind, seconds=1.0)  # type: ignore[arg-type]
    assert not cadence.due_at_boundary(step=10**6, saved_step=0, new_epoch=True)


@pytest.mark.parametrize(
    ("save_seconds", "interval_s"),
    [
        (None, 60.0),
        (0.0, 15.0),
        (0.01, 15.0),
        (0.15, 15.0),
        (1.0, 100.0),
        (36.0, 3600.0),
        (500.0, 3600.0),
    ],
)
def test_auto_spends_one_percent_but_waits_at_most_an_hour(
    save_seconds: float | None, interval_s: float
) -> None:
    assert Cadence(kind="auto").interval_s(save_seconds) == pytest.approx(interval_s)


@pytest.mark.parametrize(
    ("save_seconds", "interval_s"), [(None, 60.0), (0.15, 15.0), (1.0, 20.0), (40.0, 800.0), (500.0, 3600.0)]
)
def test_auto_spends_five_percent_where_no_save_fits_into_a_notice(
    save_seconds: float | None, interval_s: float
) -> None:
    assert Cadence(kind="auto").interval_s(save_seconds, fits=False) == pytest.approx(interval_s)


@pytest.mark.parametrize("save_seconds", [None, 0.001, 1000.0])
def test_seconds_are_kept_whatever_a_save_costs(save_seconds: float | None) -> None:
    cadence = Cadence(kind="seconds", seconds=42.0)
    assert {cadence.interval_s(save_seconds, fits=fits) for fits in (True, False)} == {42.0}
