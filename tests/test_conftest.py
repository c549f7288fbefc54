"""The guards of conftest.py can fail: each leak, in a pytest of its own."""

from __future__ import annotations

import pathlib
import re
import shutil
import socket
import threading
import time

import psutil
import pytest

_LEAKS = {
    "environment": ("os.environ['LEAKED'] = 'x'", "environment variable LEAKED: None became 'x'"),
    "thread": ("threading.Thread(target=forever.wait, name='left', daemon=True).start()", "thread 'left'"),
    "process": ("subprocess.Popen(['sleep', '60'])", "child process psutil.Process("),
    "handler": ("signal.signal(signal.SIGUSR1, lambda *_: None)", "handler of SIGUSR1"),
    "wakeup": ("signal.set_wakeup_fd(write_fd)", "signal wakeup descriptor: -1 became"),
    "file": ("open('left.txt', 'w').close()", "file 'left.txt' in"),
    "directory": ("os.chdir('/')", "working directory:"),
}
_CLEAN = {
    "thread_that_ends_soon": "threading.Timer(0.2, print).start()",
    "process_that_ends_soon": "subprocess.Popen(['sleep', '0.2'])",
    "file_in_tmp_path": "open(tmp_path / 'mine.txt', 'w').close()",
    "environment_put_back": "monkeypatch.setenv('MINE', 'x')",
    "pool": "concurrent.futures.ThreadPoolExecutor(1).submit(print)",
}
_HEAD = """
import concurrent.futures, os, signal, subprocess, threading

forever = threading.Event()
read_fd, write_fd = os.pipe()
os.set_blocking(write_fd, False)
"""


@pytest.fixture(scope="module")
def leaky_tests():
    lines = [_HEAD]
    for name, code in {**{name: code for name, (code, _) in _LEAKS.items()}, **_CLEAN}.items():
        lines.append(
            f"def test_{name}(tmp_path, monkeypatch):\n    {code}\n\n\ndef test_after_{name}():\n    pass\n"
        )
    return "\n\n".join(lines)


def test_each_leak_fails_its_own_test_and_no_other(leaky_tests, run_script, tmp_path):
    directory = tmp_path / "project"
    directory.mkdir()
    shutil.copy(pathlib.Path(__file__).with_name("conftest.py"), directory)
    (directory / "test_leaks.py").write_text(leaky_tests)
    result = run_script(
        "import os, sys, pytest\n"
        f"os.chdir({str(directory)!r})\n"
        "options = ['-rE', '-p', 'no:cacheprovider', '-W', 'ignore', '-c', os.devnull, '--rootdir=.']\n"
        "sys.exit(pytest.main(options))\n"
    )
    failed = set(re.findall(r"^ERROR .*::test_(\w+)", result.stdout, re.MULTILINE))
    assert failed == set(_LEAKS), result.stdout + result.stderr
    for _, message in _LEAKS.values():
        assert message in result.stdout
    assert f"{2 * (len(_LEAKS) + len(_CLEAN))} passed, {len(_LEAKS)} errors" in result.stdout


def ends_within(pid: int, seconds: float) -> bool:
    """Waits for a killed process, which a busy kernel may take a moment to end; nobody may reap it here."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        pause.wait(0.01)
    return False


def test_script_that_hangs_is_killed_with_its_descendants(start_script):
    script = start_script(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('started', child.pid)\n"
        "time.sleep(600)\n"
    )
    pid = script.wait_for(r"started (\d+)", timeout=30)[1]
    with pytest.raises(pytest.fail.Exception, match=r"(?s)did not end within 0.1 s.*started"):
        script.wait(timeout=0.1)
    assert script.process.returncode == -9
    assert ends_within(int(pid), 10.0)


def test_script_that_ends_without_the_expected_line_fails_at_once(start_script):
    script = start_script("print('something else')\n")
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)ended with 0 without printing 'this'.*something else"
    ):
        script.wait_for("this", timeout=30)


def test_script_gets_arguments_environment_and_the_package(run_script, monkeypatch):
    monkeypatch.setenv("UNWANTED", "1")
    result = run_script(
        "import os, sys, tf_preempt\n"
        "print(sys.argv[1:], os.environ['GIVEN'], 'UNWANTED' in os.environ)\n"
        "print('problem', file=sys.stderr)\n"
        "sys.exit(3)\n",
        "a",
        "b c",
        env={"GIVEN": "x", "UNWANTED": None},
    )
    assert (result.rc, result.stdout, result.stderr) == (3, "['a', 'b c'] x False\n", "problem\n")


def test_free_port_is_free(free_port):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port))
