import pytest

from tf_preempt.testing.drill.comparing import Comparison, parting


def steps(*alike, fit=0):
    return [{"fit": fit, "step": step, "identical": identical} for step, identical in alike]


@pytest.mark.parametrize(
    ("common", "expected"),
    [
        ([], (None, None)),
        (steps((5, True), (10, True)), (10, None)),
        (steps((5, True), (10, False), (15, True)), (5, 10)),
        (steps((5, False), (10, True)), (None, 5)),
        (steps((5, True)) + steps((5, False), fit=1), (5, 65)),
    ],
)
def test_trainings_part_between_the_last_common_step_alike_and_the_first_not(common, expected):
    assert parting(common, {0: 60, 1: 40}) == expected


@pytest.mark.parametrize(
    ("fields", "identical", "groups"),
    [
        ({}, True, ()),
        ({"random": ("numpy",)}, True, ()),
        ({"fits_missing": (1,)}, False, ()),
        ({"differences": ({"group": "b"}, {"group": "a"}, {"group": "a"})}, False, ("a", "b")),
    ],
)
def test_identical_means_that_nothing_differs_and_nothing_is_missing(fields, identical, groups):
    found = Comparison(**{"differences": (), "compared": {}, **fields})
    assert (found.identical, found.groups) == (identical, groups)
