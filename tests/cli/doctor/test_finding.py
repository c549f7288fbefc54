import json

import pytest

from tf_preempt.cli.doctor.finding import (
    Finding,
    Status,
    as_json,
    as_text,
    exit_status,
    from_error,
    from_values,
    to_values,
)
from tf_preempt.errors import SlurmError

OK = Finding(Status.OK, "one", "all is well", values={"seconds": 1.5})
WARNING = Finding(Status.WARNING, "two", "That may go wrong.", "do this")
ERROR = Finding(Status.ERROR, "three", "That goes wrong.", "do that")


@pytest.mark.parametrize(
    ("findings", "status"), [([], 0), ([OK], 0), ([OK, WARNING], 0), ([OK, ERROR, WARNING], 1)]
)
def test_only_errors_count_for_the_exit_status(findings, status):
    assert exit_status(findings) == status


@pytest.mark.parametrize("status", [Status.WARNING, Status.ERROR])
def test_trouble_without_a_cure_is_refused(status):
    with pytest.raises(ValueError, match="'x' without a cure"):
        Finding(status, "x", "Bad.")


def test_each_finding_is_a_line_and_its_cure_another():
    assert as_text([OK, ERROR], prefix="r1: ") == (
        "r1: ok      one        all is well\n"
        "r1: error   three      That goes wrong.\n"
        "r1:                    HINT: do that\n"
    )


def test_json_is_one_object_on_one_line_with_the_same_of_all_tasks():
    text = as_json([OK], {2: [WARNING], 1: [ERROR]}, rank=0)
    assert text.count("\n") == 1
    report = json.loads(text)
    assert (report["rank"], report["exit_status"], report["format"]) == (0, 1, 1)
    assert [(check["rank"], check["name"]) for check in report["checks"]] == [
        (0, "one"),
        (1, "three"),
        (2, "two"),
    ]
    assert report["checks"][:2] == [
        {
            "rank": 0,
            "name": "one",
            "status": "ok",
            "message": "all is well",
            "hint": None,
            "values": {"seconds": 1.5},
        },
        {
            "rank": 1,
            "name": "three",
            "status": "error",
            "message": "That goes wrong.",
            "hint": "do that",
            "values": {},
        },
    ]


@pytest.mark.parametrize("finding", [OK, WARNING, ERROR])
def test_a_finding_arrives_as_it_was_sent(finding):
    assert from_values(json.loads(json.dumps(to_values(finding)))) == finding


@pytest.mark.parametrize(
    "changed", [{"status": "fine"}, {"status": "error"}, {"values": 5}, {"values": None}, {"status": []}]
)
def test_what_is_no_finding_is_left_out(changed):
    assert from_values({**to_values(OK), **changed}) is None
    assert from_values({}) is None
    assert from_values("text") is None


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (SlurmError("It is\n  so.", hint="mend it"), "It is so.", "mend it"),
        (SlurmError("It is so."), "It is so.", "else"),
        (PermissionError("no"), "PermissionError: no", "else"),
    ],
)
def test_an_errors_own_cure_comes_before_a_general_one(error, message, hint):
    finding = from_error("x", error, hint="else")
    assert (finding.status, finding.message, finding.hint) == (Status.ERROR, message, hint)
