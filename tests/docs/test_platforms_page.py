"""What docs/platforms.md says in its tables is what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tf_preempt import termination
from tf_preempt.checkpointing import asking, cadence, countdown
from tf_preempt.termination import (
    Platform,
    appointments,
    aws,
    azure,
    background,
    detect_platform,
    gce,
    shortest_notice,
)
from tf_preempt.termination.cloud import DMI_DIRECTORY, Cloud, Firmware
from tf_preempt.termination.exit_codes import restart_exit_code
from tf_preempt.testing.metadata_server import Misbehaviour

PAGE = (Path(__file__).parents[2] / "docs/platforms.md").read_text(encoding="utf-8")


def rows(header):
    """The cells of a table's rows, by their column."""
    lines = iter(PAGE.splitlines())
    names = next(line for line in lines if line.startswith(header)).strip("|").split("|")
    assert next(lines).startswith("|---")
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        table.append(dict(zip([name.strip() for name in names], cells, strict=True)))
    return table


PLATFORMS = rows("| platform |")
SOURCES = rows("| cloud |")
VALUES = {
    "gce-maintenance": [gce._MAINTENANCE_NOTICE_S, gce._GPU_MAINTENANCE_NOTICE_S],
    "gce-preempted": [gce._PREEMPTION_NOTICE_S],
    "gce-upcoming-maintenance": [gce._APPOINTMENT_LEAD_S],
    "aws-spot": [],
    "aws-maintenance": [aws._APPOINTMENT_LEAD_S],
    "aws-rebalance": [],
    "azure-scheduled-event": [azure._APPOINTMENT_LEAD_S],
}


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def signs(cell):
    """What makes a platform be recognized, as (environment, firmware) for each of the signs in a cell."""
    names = code(cell)
    if "firmware" not in cell:
        return [({name.replace("*", "X"): "1"}, Firmware()) for name in names]
    pairs = zip(names[::2], names[1::2], strict=True)
    return [({}, Firmware(**{name: value})) for name, value in pairs]


def test_every_platform_has_a_row():
    assert sorted(code(row["platform"])[0] for row in PLATFORMS) == sorted(Platform)


@pytest.mark.parametrize("row", PLATFORMS, ids=lambda row: row["platform"])
def test_a_platform_is_recognized_by_what_its_row_says(row):
    (platform,) = code(row["platform"])
    cases = signs(row["recognized by"]) or [({}, Firmware())]
    assert [detect_platform(environ, firmware=firmware) for environ, firmware in cases] == [
        Platform(platform)
    ] * len(cases)


@pytest.mark.parametrize("row", PLATFORMS, ids=lambda row: row["platform"])
def test_a_platform_is_told_the_exit_status_in_its_row(row):
    (platform,) = code(row["platform"])
    assert re.match(r"\d+", row["exit status for a restart"])[0] == str(restart_exit_code(platform))


def test_the_first_row_that_fits_counts():
    environ, firmware = {}, Firmware(product_name="Google Compute Engine")
    found = []
    for row in PLATFORMS:
        if "firmware" not in row["recognized by"] and code(row["recognized by"]):
            found.append((code(row["platform"])[0], code(row["recognized by"])[0]))
    for platform, variable in reversed(found):
        environ[variable] = "1"
        assert detect_platform(environ, firmware=firmware) == platform
    assert len(found) == 3


def test_every_source_has_a_row():
    sources = {
        gce.GceMaintenanceWatcher.SOURCE,
        gce.GcePreemptionWatcher.SOURCE,
        gce.GceUpcomingMaintenanceWatcher.SOURCE,
        aws.AwsWatcher.SPOT_SOURCE,
        aws.AwsWatcher.MAINTENANCE_SOURCE,
        aws.AwsWatcher.REBALANCE_SOURCE,
        azure.AzureWatcher.SOURCE,
    }
    assert {code(row["source of the notice"])[0] for row in SOURCES} == sources == set(VALUES)


@pytest.mark.parametrize("row", SOURCES, ids=lambda row: row["source of the notice"])
def test_a_source_has_the_watcher_and_the_times_in_its_row(row):
    (source,) = code(row["source of the notice"])
    (call,) = code(row["watcher"])
    assert call.partition("(")[0] in termination.__all__
    seconds = re.findall(r"\b(\d+) s\b", row["when"] + " " + row["deadline"])
    assert [float(number) for number in seconds] == VALUES[source]


def test_events_of_azure_that_are_notices_are_named():
    (row,) = (row for row in SOURCES if "azure" in row["source of the notice"])
    assert set(code(row["when"])) == azure._ENDING


def test_times_in_the_text_are_those_of_the_code():
    assert f"put off until {appointments._SECOND_LEAD_S:.0f} s before" in PAGE
    assert f"{background._LONGEST_PAUSE_S:.0f} at most" in PAGE
    assert DMI_DIRECTORY in PAGE


def test_times_in_which_is_trained_and_for_which_is_saved_are_those_of_the_code():
    words = " ".join(PAGE.split())
    assert f"{gce._TRAINS_ON_FROM_S:.0f} s or more of `gce-maintenance`" in words
    assert (asking._GRACE_IN_SAVES, countdown._KEPT) == (3, 3)
    assert "three times what a save takes up to its commit (the longest of the last three" in words
    assert f"the longest step so far, and {asking._LEAVE_MARGIN_S:.0f} s" in words
    budgets = (cadence.OVERHEAD_BUDGET_WITHOUT_NOTICE, cadence.OVERHEAD_BUDGET)
    assert "up to {:.0%} of the time, not {:.0%}".format(*budgets).replace("%", " %") in words


def test_shortest_notices_are_those_of_the_code():
    told = {row["where"]: re.match(r"\d+", row["shortest notice known"]) for row in rows("| where |")}
    names = {"Compute Engine": Cloud.GCE, "EC2": Cloud.AWS, "Azure": Cloud.AZURE}
    assert {names[name]: float(told[name][0]) for name in names} == shortest_notice._SPOT_S
    assert float(told["Kubernetes"][0]) == shortest_notice._POD_S
    assert told.keys() == {*names, "Kubernetes", "elsewhere"}


def test_misbehaviours_that_are_named_exist():
    named = re.findall(r'`(?:server\.misbehave\()?"(\w+)"\)?`', PAGE)
    assert {"never", "slow", "503", "garbage"} <= set(named) <= set(get_args(Misbehaviour))
