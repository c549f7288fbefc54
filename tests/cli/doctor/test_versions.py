import importlib.metadata
import re
from pathlib import Path

import pytest

from tf_preempt.cli.doctor.finding import Status
from tf_preempt.cli.doctor.versions import OLDEST, check_versions, installed_versions

GOOD = {"tensorflow": "2.21.0", "keras": "3.15.1"}


def statuses(**changed):
    return [finding.status for finding in check_versions({**GOOD, **changed}, "3.11.7")]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"tensorflow": "2.18.0"},
        {"tensorflow": "2.22.0rc1"},
        {"tensorflow": "3.0.0-dev20261101"},
        {"keras": "3.10.0"},
        {"keras": "4.0"},
    ],
)
def test_supported_versions_are_ok(changed):
    assert statuses(**changed) == [Status.OK]


@pytest.mark.parametrize(
    ("changed", "said", "cure"),
    [
        ({"tensorflow": "2.17.1"}, "tensorflow 2.17.1 is older than 2.18", "'tensorflow>=2.18'"),
        ({"tensorflow": "1.15.5"}, "tensorflow 1.15.5 is older than 2.18", "'tensorflow>=2.18'"),
        ({"keras": "3.9.2"}, "keras 3.9.2 is older than 3.10: in 3.8 and 3.9", "'keras>=3.10'"),
        ({"keras": None}, "keras is not installed", "'keras>=3.10'"),
    ],
)
def test_old_or_missing_packages_are_errors_with_the_cure(changed, said, cure):
    overview, trouble = check_versions({**GOOD, **changed}, "3.11.7")
    assert overview.status is Status.INFO
    assert trouble.status is Status.ERROR
    assert said in trouble.message
    assert cure in trouble.hint


def test_an_unknown_version_is_a_warning():
    assert statuses(tensorflow="") == [Status.INFO, Status.WARNING]


def test_overview_names_all():
    message = check_versions(GOOD, "3.11.7")[0].message
    assert re.fullmatch(r"tf_preempt \S+, tensorflow 2\.21\.0, keras 3\.15\.1, Python 3\.11\.7", message)


def versions_of(installed, importable=()):
    def version_of(name):
        if name not in installed:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed[name]

    return installed_versions(version_of, lambda name: name in importable)


@pytest.mark.parametrize(
    ("installed", "importable", "found"),
    [
        ({"tensorflow": "2.21.0", "keras": "3.15.1"}, (), {"tensorflow": "2.21.0", "keras": "3.15.1"}),
        ({"tensorflow-cpu": "2.20.0", "keras": "3.15.1"}, (), {"tensorflow": "2.20.0", "keras": "3.15.1"}),
        ({"keras": "3.15.1"}, ("tensorflow",), {"tensorflow": "", "keras": "3.15.1"}),
        ({}, (), {"tensorflow": None, "keras": None}),
    ],
)
def test_versions_come_from_the_metadata_of_whatever_distribution(installed, importable, found):
    assert versions_of(installed, importable) == found


def test_the_oldest_versions_are_those_of_pyproject():
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    for package, oldest in OLDEST.items():
        assert f'"{package}>={".".join(map(str, oldest))}"' in text
