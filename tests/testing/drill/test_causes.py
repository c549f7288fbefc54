import ast
import functools
import itertools
import re
from pathlib import Path

import pytest

import tf_preempt
from tf_preempt.testing.drill import causes
from tf_preempt.testing.drill.causes import likely_causes
from tf_preempt.testing.drill.comparing import Comparison

DETERMINISM = "Op determinism is off: kernels and data pipelines may do the same work in another order"


def difference(name="dense/kernel", group="weights", max_ulp=10**8):
    return {"name": name, "group": group, "max_ulp": max_ulp}


def comparison(*differences, **fields):
    return Comparison(differences=differences or (difference(),), compared={}, **fields)


def names(compared, output="", *, repeatable=True):
    return [cause.name for cause in likely_causes(compared, {"x.log": output}, repeatable=repeatable)]


@functools.cache
def texts_of_the_package():
    paths = [path for path in Path(tf_preempt.__file__).parent.rglob("*.py") if path.name != "causes.py"]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    values = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def logged(words):
    """The warnings of the package that have these words, with N0, N1, ... where they name something."""

    def filled(text):
        numbers = itertools.count()
        return re.sub(
            "%[sr]", lambda at: f"'N{next(numbers)}'" if at[0] == "%r" else f"N{next(numbers)}", text
        )

    return [filled(text) for text in texts_of_the_package() if words in text]


@pytest.mark.parametrize("words", [*causes._WARNINGS, causes._DETERMINISM_WARNING])
def test_words_are_those_of_a_warning_that_the_package_logs(words):
    assert any(words in text for text in texts_of_the_package())


@pytest.mark.parametrize(
    ("warning", "cause"),
    [
        (
            "draws random numbers with ops whose state is in no checkpoint (RandomStandardNormal)",
            "stateful_random_op",
        ),
        (
            "The state of the training data cannot be saved: the pipeline holds a Python generator",
            "data_position",
        ),
        ("The state of data iterator '0' cannot be saved: its pipeline holds a Python", "data_position"),
        (
            "Training and validation data come from one shuffle that orders each iteration anew",
            "shared_shuffle",
        ),
        ("state of random generators that the program lacks (layer/g)", "unsaved_seed_generator"),
        ("The state of the callback Mine is not saved; after a resume it begins afresh: x", "callback_state"),
        ("The training data is shuffled without a seed, so that each process", "unseeded_shuffle"),
        ("The callback Mine keeps state that is not saved (x)", "callback_state"),
        ("Variable 'v' differed between replicas when the checkpoint was written", "replica_state"),
        ("The training data has a cache in memory between a shuffle and what gives", "lost_cache"),
        ("The run goes on after step 7, and no data iterator is tracked: data", "untracked_data"),
        ("The checkpoint has no position of a data iterator '1': it begins", "untracked_data"),
        ("The program uses variables that change and that no checkpoint holds (counter)", "unsaved_variable"),
    ],
)
@pytest.mark.parametrize("repeatable", [True, None])
def test_warning_of_the_training_comes_first(warning, cause, repeatable):
    output = f"[worker 1] {DETERMINISM}\n[worker 1] {warning} and so on\n"
    found = names(comparison(), output, repeatable=repeatable)
    assert found == [cause, "nondeterministic_op"]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("draws random numbers with ops whose state is in no checkpoint", "N0"),
        ("data cannot be saved: the pipeline holds", "N1"),
        ("cannot be saved: its pipeline holds", "N1"),
        ("data is shuffled without a seed", "N0 data"),
        ("state of random generators that the program lacks", "N0"),
        ("keeps state that is not saved", "N0 (N1)"),
        ("is not saved; after a resume it begins afresh", "N0: N1"),
        ("differed between replicas when the checkpoint was written", "N0"),
        ("data has a cache in memory between a shuffle", "N0 data"),
        ("has no position of a data iterator", "N0"),
        ("uses variables that change and that no checkpoint holds", "N0"),
    ],
)
def test_what_a_warning_names_is_told_with_the_log_that_has_it(words, found):
    for warning in logged(words):
        labelled = "".join(f"[worker 1] {line}\n" for line in warning.splitlines())
        logs = {"a.log": "step 1\n", "b.log": f"step 2\n{labelled}{labelled}step 3\n"}
        (cause,) = likely_causes(comparison(), logs, repeatable=True)
        assert (cause.found, cause.log) == ((found,), "b.log")
        assert cause.text.endswith(f"; here: {found}")


def test_every_warning_that_names_something_is_asked_for_it():
    silent = {"come from one shuffle that orders each iteration anew", "and no data iterator is tracked"}
    assert causes._NAMED.keys() == causes._WARNINGS.keys() - silent


def test_all_callbacks_that_were_warned_of_are_named():
    said = "The callback {} keeps state that is not saved ({}): after a resume\n".format
    afresh = "The state of the callback Third is not saved; after a resume it begins afresh: a set\n"
    output = said("First", "n, m") + said("Second", "calls(x)") + afresh
    found = likely_causes(comparison(), {"x.log": output}, repeatable=True)
    assert [cause.found for cause in found] == [("First (n, m)", "Second (calls(x))"), ("Third: a set",)]


def test_cause_that_a_warning_names_is_not_replaced_by_the_one_that_was_deduced():
    output = "state of random generators that the program lacks (layer/g): where they are made later"
    compared = comparison(difference("seed_generator/state", "seeds"))
    (cause,) = likely_causes(compared, {"x.log": output}, repeatable=True)
    assert cause.found == ("layer/g",)


def test_data_that_python_reads_is_cured_by_a_source_first():
    output = "data cannot be saved: the pipeline holds a Python generator (PyFunc at x.py:16). A resumed run"
    cause = likely_causes(comparison(), {"x.log": output}, repeatable=True)[0]
    assert cause.cure.startswith("tf_preempt.data.from_source ")


@pytest.mark.parametrize(
    ("compared", "cause"),
    [
        (comparison(difference("seed_generator/seed_generator_state", "seeds")), "unsaved_seed_generator"),
        (comparison(difference("adam/iteration", "optimizer")), "number_of_steps"),
        (comparison(difference("steps in all", "place")), "number_of_steps"),
        (comparison(difference(), fits_missing=(1,)), "number_of_steps"),
        (comparison(difference("history.loss", "history")), "logs_only"),
        (comparison(difference()), "python_state"),
    ],
)
def test_cause_is_deduced_from_what_differs(compared, cause):
    assert names(compared) == [cause]


@pytest.mark.parametrize(
    ("max_ulp", "output", "expected"),
    [
        (10**8, DETERMINISM, ["unseeded", "nondeterministic_op"]),
        (3, DETERMINISM, ["nondeterministic_op", "unseeded"]),
        (3, "", ["unseeded"]),
        (None, "", ["unseeded"]),
        (3, "The training data is shuffled without a seed, so", ["unseeded_shuffle", "unseeded"]),
        (
            3,
            "The state of the training data cannot be saved: the pipeline holds",
            ["unseeded", "data_position"],
        ),
    ],
)
def test_two_undisturbed_trainings_differ_by_rounding_or_by_much(max_ulp, output, expected):
    assert names(comparison(difference(max_ulp=max_ulp)), output, repeatable=False) == expected


@pytest.mark.parametrize(
    ("last_alike", "expected"),
    [(None, ["nondeterministic_op", "unseeded"]), (5, ["python_state", "nondeterministic_op"])],
)
def test_program_that_was_not_tried_twice_may_not_be_repeatable(last_alike, expected):
    assert names(comparison(last_alike=last_alike), DETERMINISM, repeatable=None) == expected


def test_every_cause_has_a_cure():
    outputs = ["", DETERMINISM]
    for repeatable in (True, False, None):
        for output in outputs:
            for cause in likely_causes(comparison(), {"x.log": output}, repeatable=repeatable):
                assert cause.text
                assert cause.cure
