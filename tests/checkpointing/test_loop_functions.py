"""Looking for the functions of a loop leaves the loop's own variables as they are, and keeps none alive."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tf_preempt.checkpointing.loop_functions import traced_functions_of


class Batch:
    """Something that the first turn of a loop has, and the second has not."""


@tf.function
def step() -> tf.Tensor:
    return tf.constant(1)


@pytest.fixture(autouse=True)
def _step_is_traced() -> None:
    step()


def test_what_the_first_turn_had_is_gone_in_the_second() -> None:
    first: weakref.ref[Batch] | None = None
    inside = tf.function(lambda: tf.constant(2))
    for turn in range(2):
        if turn:
            assert first is not None
            assert first() is None
            break
        inside()
        batch = Batch()
        first = weakref.ref(batch)
        assert traced_functions_of(sys._getframe()) == [inside]
        del batch


def test_what_functions_of_the_loop_share_with_it_is_gone_in_the_second_turn() -> None:
    batch = Batch()
    first = weakref.ref(batch)

    def show() -> Any:
        return batch

    assert show() is first()
    traced_functions_of(sys._getframe())
    batch = Batch()
    assert first() is None


def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
    return trace


@pytest.fixture(params=["alone", "debugged"])
def begin_debugging(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Has a function traced from its next line on, as a debugger does that is called in the loop."""

    def begin(frame: types.FrameType) -> None:
        if request.param == "debugged":
            frame.f_trace = trace
            sys.settrace(trace)

    before = sys.gettrace()
    yield begin
    sys.settrace(before)


def test_the_variables_of_a_loop_stay_as_they_are(begin_debugging: Any) -> None:
    one, shared, seen = 1, [2], []

    def double() -> list[int]:
        return shared * 2

    for turn in range(3):
        traced_functions_of(sys._getframe())
        one += 1
        if turn == 0:
            begin_debugging(sys._getframe())
        seen.append(one)
        shared = [turn]
    assert (one, shared, seen, double()) == (4, [2], [2, 3, 4], [2, 2])


def test_what_the_program_has_from_locals_is_left_to_it() -> None:
    rate, batches = 0.5, 8
    options = locals()
    traced_functions_of(sys._getframe())
    assert (options["rate"], options["batches"]) == (rate, batches)


LOOP = """
import sys
before = 1
found = look(sys._getframe(), step())
after = sorted(name for name in globals() if not name.startswith("_"))
"""


def test_the_variables_of_a_module_stay() -> None:
    def look(frame: types.FrameType, _: object) -> Any:
        return traced_functions_of(frame)

    module: dict[str, Any] = {"__name__": "program", "step": step, "look": look}
    exec(compile(LOOP, "program.py", "exec"), module)
    assert module["found"] == [step]
    assert module["after"] == ["before", "found", "look", "step", "sys"]


EXECUTES = """
import sys
def loop():
    rate = 1
    exec("extra = 5 * rate")
    look(sys._getframe())
    return locals().get("extra")
"""


def test_what_a_function_has_executed_is_what_it_is_without_us() -> None:
    found = []
    for look in (traced_functions_of, lambda _: None):
        program: dict[str, Any] = {"__name__": "program", "look": look}
        exec(compile(EXECUTES, "program.py", "exec"), program)
        found.append(program["loop"]())
    assert found[0] == found[1]  # 5 up to Python 3.12
