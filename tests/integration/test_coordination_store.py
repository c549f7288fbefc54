"""The store on TensorFlow's coordination service, in two processes; in the end the chief's is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration import cluster

_SCRIPT = '''
import json
import os
import sys
import threading
import time

from tf_preempt.checkpointing.key_value import CoordinationServiceStore, KeyExistsError
from tf_preempt.errors import CoordinationError, WorkerLostError
from tf_preempt.strategies import MultiWorkerMirroredStrategy

strategy = MultiWorkerMirroredStrategy()
worker = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
store = CoordinationServiceStore(set_timeout_s=3.0)
found = {}


def timed(call):
    """Name of the error, or the result, and the seconds that it took."""
    started = time.monotonic()
    try:
        outcome = call()
    except Exception as error:
        outcome = type(error).__name__
        found.setdefault("is_coordination_error", {})[outcome] = isinstance(error, CoordinationError)
    return outcome, time.monotonic() - started


def together(name):
    store.set(f"{name}/{worker}", "here")
    store.get(f"{name}/{1 - worker}", 60.0)


together("begin")
found["wins"] = timed(lambda: store.set("once", f"worker {worker}"))[0]
found["winner"] = store.get("once", 30.0)
found["again"] = timed(lambda: store.set("once", "again"))[0]
found["winner still"] = store.get("once", 30.0)

text = json.dumps({"text": "\\u00e4\\n\\t'", "long": "x" * 20_000})
if worker == 0:
    store.set("deep/er/text", text)
found["text survives"] = store.get("deep/er/text", 30.0) == text

turns = 0
stop = threading.Event()


def count():
    global turns
    while not stop.wait(0.005):
        turns += 1


counting = threading.Thread(target=count)
counting.start()
found["time out"] = timed(lambda: store.get("never", 1.0))
stop.set()
counting.join()
found["turns while waiting"] = turns
found["time out of nothing"] = timed(lambda: store.get("never", 0.0))

if worker == 1:
    store.set("waiting", "1")
    found["woken"] = timed(lambda: store.get("later", 30.0))
else:
    store.get("waiting", 30.0)
    time.sleep(0.5)
    store.set("later", "now")

if worker == 1:
    try:
        store.set("the chief may go", "1")
    except WorkerLostError:
        pass  # the chief read it and was gone before it could answer
    found["get without chief"] = timed(lambda: store.get("never", 30.0))
    found["set without chief"] = timed(lambda: store.set("after", "1"))
else:
    store.get("the chief may go", 30.0)
with open(os.path.join(sys.argv[1], f"{worker}.json"), "w") as file:
    json.dump(found, file)
os._exit(0)  # as a killed process: nothing is shut down
'''

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("store")
    script = directory / "store.py"
    script.write_text(_SCRIPT)
    cluster.run_workers(script, [str(directory)], directory=directory, workers=2, timeout_s=120)
    return [json.loads((directory / f"{worker}.json").read_text()) for worker in range(2)]


def test_one_of_two_writers_wins_and_both_read_its_value(found: Found) -> None:
    assert sorted([found[0]["wins"], found[1]["wins"]], key=str) == ["KeyExistsError", None]
    winner = [worker for worker in range(2) if found[worker]["wins"] is None]
    assert [one["winner"] for one in found] == [f"worker {winner[0]}"] * 2


def test_a_written_key_stays_as_it_is(found: Found) -> None:
    for one in found:
        assert one["again"] == "KeyExistsError"
        assert one["winner still"] == one["winner"]


def test_any_text_survives(found: Found) -> None:
    assert [one["text survives"] for one in found] == [True, True]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_time_out_is_kept_and_other_threads_run_meanwhile(found: Found, worker: int) -> None:
    error, seconds = found[worker]["time out"]
    assert error == "TimeoutError"
    assert 1.0 <= seconds < 1.5
    assert found[worker]["turns while waiting"] > 20
    error, seconds = found[worker]["time out of nothing"]
    assert error == "TimeoutError"
    assert seconds < 0.5


def test_a_waiting_reader_is_woken_by_the_writer(found: Found) -> None:
    value, seconds = found[1]["woken"]
    assert value == "now"
    assert 0.3 < seconds < 5.0


def test_without_the_chief_reading_and_writing_are_coordination_errors_in_bounded_time(found: Found) -> None:
    for name, limit_s in (("get without chief", 15.0), ("set without chief", 4.0)):
        error, seconds = found[1][name]
        assert error == "WorkerLostError"
        assert seconds < limit_s
    assert found[1]["is_coordination_error"]["WorkerLostError"]
    assert not found[1]["is_coordination_error"]["TimeoutError"]
