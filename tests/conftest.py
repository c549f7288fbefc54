"""What every test gets: guards against leaks, and processes that cannot outlive their test."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import psutil
import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets what it starts in the background ignore SIGINT; tests press Ctrl-C as at a terminal.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Tests also run on machines of clouds, whose metadata servers are not to be asked.
os.environ.setdefault("TF_PREEMPT_CLOUD", "none")

# A thread, a process or a file that is just going away gets this long.
_GRACE_S = 3.0

# Threads that belong to libraries and live as long as the process.
_THREADS_THAT_STAY = re.compile(
    r"""
      pytest[_-]timeout.*           # pytest-timeout, with its thread method
    | ThreadPoolExecutor-\d+_\d+    # Keras and TensorFlow keep pools of idle workers
    | tf_preempt-old-iterator       # waits for TensorFlow, for a minute at most
    | Thread-\d+\ \(_check_health\) # a multi-worker strategy of TensorFlow, until it is collected
    """,
    re.VERBOSE,
)

# Variables that pytest and imports set for the whole process.
_VARIABLES_THAT_STAY = frozenset(
    {
        "PYTEST_CURRENT_TEST",
        "ENABLE_RUNTIME_UPTIME_TELEMETRY",  # this and the next four: import tensorflow
        "HDF5_PLUGIN_PATH",
        "TF2_BEHAVIOR",
        "TPU_ML_PLATFORM",
        "TPU_ML_PLATFORM_VERSION",
        "KMP_DUPLICATE_LIB_OK",  # this and the next: threadpoolctl, through import sklearn
        "KMP_INIT_AT_FORK",
    }
)

# What tools leave in the directory that they run in.
_FILES_THAT_STAY = re.compile(
    r"\.(pytest|mypy|ruff|import_linter)_cache|\.hypothesis|__pycache__|\.coverage.*|\.git.*|\.setup-.*"
)

# Helpers of multiprocessing, which live as long as the process that needed them.
_PROCESSES_THAT_STAY = re.compile(r"multiprocessing\.(resource_tracker|forkserver)")

# Clients of a test's private Slurm have this variable.  A test that runs in a thread may be asking just now,
# while another one ends; they have time-outs.
_CLIENT_OF_SLURM = "SLURM_SANDBOX_DIR"

_known_children: set[psutil.Process] = set()


def _vanish(remaining: Callable[[], list[str]]) -> list[str]:
    """What is left of `remaining` after a short while."""
    end = time.monotonic() + _GRACE_S
    while (left := remaining()) and time.monotonic() < end:
        time.sleep(0.01)
    return left


def _signal_handlers() -> dict[int, object]:
    # SIGALRM is pytest-timeout's, which takes its handler back as soon as a test fails.
    return {number: signal.getsignal(number) for number in signal.valid_signals() - {signal.SIGALRM}}


def _wakeup_fd() -> int:
    fd = signal.set_wakeup_fd(-1)
    if fd != -1:
        signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    return fd


def _children() -> set[psutil.Process]:
    alive = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and not _stays(child):
                alive.add(child)
        except psutil.NoSuchProcess:
            pass
    return alive


def _stays(child: psutil.Process) -> bool:
    if _PROCESSES_THAT_STAY.search(" ".join(child.cmdline())):
        return True
    return _CLIENT_OF_SLURM in child.environ()


def _environment_leaks(before: dict[str, str]) -> list[str]:
    after = dict(os.environ)
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    leaks = sorted(names - _VARIABLES_THAT_STAY)
    for name in leaks:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    return [f"environment variable {name}: {before.get(name)!r} became {after.get(name)!r}" for name in leaks]


def _thread_leaks(before: set[threading.Thread]) -> list[str]:
    def remaining() -> list[str]:
        return [
            f"thread {thread.name!r}"
            for thread in set(threading.enumerate()) - before
            if thread.is_alive() and not _THREADS_THAT_STAY.fullmatch(thread.name)
        ]

    return _vanish(remaining)


def _process_leaks() -> list[str]:
    leaks = _vanish(lambda: [f"child process {child}" for child in _children() - _known_children])
    for child in _children() - _known_children:
        child.kill()
    return leaks


def _signal_leaks(handlers: dict[int, object], wakeup_fd: int) -> list[str]:
    leaks = []
    for number, handler in _signal_handlers().items():
        if handler is not handlers[number] and handler != handlers[number]:
            leaks.append(f"handler of {signal.Signals(number).name}: {handler!r}")
            signal.signal(number, handlers[number] or signal.SIG_DFL)
    if _wakeup_fd() != wakeup_fd:
        leaks.append(f"signal wakeup descriptor: {wakeup_fd} became {_wakeup_fd()}")
        signal.set_wakeup_fd(wakeup_fd)
    return leaks


def _file_leaks(directory: str, before: set[str]) -> list[str]:
    new = sorted(set(os.listdir(directory)) - before)
    leaks = [f"file {name!r} in {directory}" for name in new if not _FILES_THAT_STAY.fullmatch(name)]
    if os.getcwd() != directory:
        leaks.append(f"working directory: {directory} became {os.getcwd()}")
        os.chdir(directory)
    return leaks


@pytest.fixture(autouse=True)
def _no_notice_for_the_next_training() -> Iterator[None]:
    """One that came when a training was complete must not be answered in another test."""
    yield
    session = sys.modules.get("tf_preempt.checkpointing.session")
    if session is not None:
        session._unanswered.clear()


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fails a test that leaves something behind, and cleans up so that only the guilty one fails."""
    environ, threads = dict(os.environ), set(threading.enumerate())
    handlers, wakeup_fd = _signal_handlers(), _wakeup_fd()
    directory = os.getcwd()
    files = set(os.listdir(directory))
    yield
    leaks = [
        *_environment_leaks(environ),
        *_thread_leaks(threads),
        *_process_leaks(),
        *_signal_leaks(handlers, wakeup_fd),
        *_file_leaks(directory, files),
    ]
    if leaks:
        pytest.fail("The test leaves behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def _children_of_the_session() -> None:
    """Notes the processes that belong to whoever runs the tests."""
    _known_children.update(_children())


@pytest.fixture
def free_port() -> int:
    """A TCP port on 127.0.0.1 that the kernel has just found free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclasses.dataclass(frozen=True)
class ScriptResult:
    """How a script ended: exit status (negative: the signal that killed it) and what it printed."""

    rc: int
    stdout: str
    stderr: str


class Script:
    """A running Python script with its own process group, output in files, and a bounded life."""

    def __init__(
        self, command: list[str], environ: dict[str, str], directory: pathlib.Path, name: str
    ) -> None:
        self._stdout = directory / f"{name}.stdout"
        self._stderr = directory / f"{name}.stderr"
        # Files, not pipes: a grandchild that keeps a pipe open would make reading it hang.
        with self._stdout.open("wb") as out, self._stderr.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                env=environ,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stdout(self) -> str:
        return self._stdout.read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern: str, timeout: float) -> re.Match[str]:
        """Waits until `pattern` is found in the standard output; fails if the script ends without it."""
        end = time.monotonic() + timeout
        while True:
            ended = self.process.poll() is not None
            if match := re.search(pattern, self.stdout):
                return match
            if ended or time.monotonic() > end:
                self.kill()
                state = f"ended with {self.process.returncode}" if ended else f"ran {timeout} s"
                pytest.fail(f"The script {state} without printing {pattern!r}.\n{self._output()}")
            time.sleep(0.005)

    def wait(self, timeout: float) -> ScriptResult:
        """Waits for the end; fails, with nothing left running, if it takes longer than `timeout` seconds."""
        try:
            rc = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"The script did not end within {timeout} s.\n{self._output()}")
        return ScriptResult(rc, self.stdout, self.stderr)

    def kill(self) -> None:
        """Kills the script, its process group, and descendants that have left the group."""
        try:
            victims = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            victims = []
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        for victim in victims:
            try:
                victim.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait()

    def _output(self) -> str:
        return f"--- stdout\n{self.stdout[-8000:]}\n--- stderr\n{self.stderr[-8000:]}"


StartScript = Callable[..., Script]
RunScript = Callable[..., ScriptResult]


@pytest.fixture
def start_script(tmp_path: pathlib.Path) -> Iterator[StartScript]:
    """Starts Python scripts that are killed, with all their descendants, when the test ends.

    ``start_script(source_or_path, *args, env={"NAME": "value", "UNWANTED": None})``; a string with a line
    break is source text.  The package is importable from the checkout, the working directory is `tmp_path`.
    """
    started: list[Script] = []

    def start(
        source_or_path: str | os.PathLike[str],
        *args: str,
        env: Mapping[str, str | None] | None = None,
    ) -> Script:
        name = f"script-{len(started)}"
        path = pathlib.Path(source_or_path) if "\n" not in str(source_or_path) else tmp_path / f"{name}.py"
        if "\n" in str(source_or_path):
            path.write_text(str(source_or_path), encoding="utf-8")
        changed = {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1", **(env or {})}
        environ = {name: value for name, value in {**os.environ, **changed}.items() if value is not None}
        script = Script([sys.executable, str(path), *args], environ, tmp_path, name)
        started.append(script)
        return script

    yield start
    for script in started:
        script.kill()


@pytest.fixture
def run_script(start_script: StartScript) -> RunScript:
    """Runs a Python script to its end: as `start_script`, with ``timeout`` in seconds (default 60)."""

    def run(
        source_or_path: str | os.PathLike[str],
        *args: str,
        env: Mapping[str, str | None] | None = None,
        timeout: float = 60.0,
    ) -> ScriptResult:
        return start_script(source_or_path, *args, env=env).wait(timeout)

    return run
