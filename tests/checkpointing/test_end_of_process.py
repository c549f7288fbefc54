"""Real processes that leave while something of theirs would go on for ever."""

from __future__ import annotations

from typing import Any

import pytest

_LEAVE = """
import atexit
import concurrent.futures
import os
import sys
import threading

from tf_preempt.checkpointing import end_of_process
from tf_preempt.checkpointing.leaving import Leaving
from tf_preempt.termination.auto import Platform
from tf_preempt.termination.config import TerminationConfig

end_of_process.GRACE_S = float(sys.argv[2])
leaving = Leaving(Platform.LOCAL, TerminationConfig(), raise_instead=False)
for_ever = threading.Event().wait


def thread():
    threading.Thread(target=for_ever, name="mine").start()


def executor():
    pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="pool")
    pool.submit(for_ever)


def atexit_function():
    atexit.register(for_ever)
    atexit.register(print, "atexit was called")


def for_good():
    thread()
    leaving.leave_for_good("An error.")


def short_ones():
    done = threading.Event()
    threading.Thread(target=lambda: (done.wait(), print("thread ended"))).start()
    atexit.register(print, "atexit was called")
    atexit.register(done.set)
    threading.Timer(0.2, done.set).start()


def caught():
    thread()
    try:
        leaving.leave("First.")
    except SystemExit:
        end_of_process._FORGOTTEN_AFTER_S = 0.0
    threading.Timer(1.0, os._exit, [5]).start()
    sys.exit(3)


def forked():
    try:
        leaving.leave("In the parent.")
    except SystemExit:
        pid = os.fork()
    if not pid:
        threading.Timer(1.0, os._exit, [7]).start()
        sys.exit(3)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


globals()[sys.argv[1]]()
leaving.leave("Saved step 7.")
"""


@pytest.mark.parametrize(
    ("what", "status", "kept_by"),
    [
        ("thread", 42, "thread(s) mine"),
        ("executor", 42, "thread(s) pool_0"),
        ("atexit_function", 42, "a function of atexit"),
        ("for_good", 1, "thread(s) mine"),
    ],
)
def test_what_would_keep_the_process_does_not(run_script: Any, what: str, status: int, kept_by: str) -> None:
    ended = run_script(_LEAVE, what, "0.3", env={"PYTHONUNBUFFERED": None}, timeout=60)
    assert ended.rc == status, ended.stderr
    # Nothing but the end of the process would flush it.
    assert ended.stdout == ("atexit was called\n" if what == "atexit_function" else "")
    said = f"tf_preempt: {kept_by} kept the process for 0.3 s; it ends now with exit status {status}.\nHINT: "
    assert said in ended.stderr


def test_what_ends_in_time_is_waited_for(run_script: Any) -> None:
    ended = run_script(_LEAVE, "short_ones", "60", timeout=50)
    assert ended.rc == 42, ended.stderr
    assert ended.stdout == "thread ended\natexit was called\n"
    assert "kept the process" not in ended.stderr


def test_a_program_that_goes_on_after_all_is_left_alone(run_script: Any) -> None:
    ended = run_script(_LEAVE, "caught", "0.1", timeout=60)
    assert ended.rc == 5, ended.stderr
    assert "kept the process" not in ended.stderr


def test_a_child_is_not_ended_for_its_parent(run_script: Any) -> None:
    ended = run_script(_LEAVE, "forked", "0.1", timeout=60)
    assert ended.rc == 42, ended.stderr
    assert "child 7\n" in ended.stdout
