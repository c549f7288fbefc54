"""Worker processes on this machine, each with its ``TF_CONFIG``, started and watched until all have ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# How long the others may go on once one worker has failed: they notice a lost peer within 11 s.
_GRACE_S = 15.0
_POLL_S = 0.05


class Finished(NamedTuple):
    """One worker that has ended."""

    index: int
    returncode: int
    output: str


class WorkersFailedError(Exception):
    """A worker failed, or not all ended in time; holds the end of everybody's output."""


def free_ports(count: int) -> list[int]:
    """Distinct TCP ports on loopback that nobody listens on, chosen by the kernel."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def run_workers(
    script: Path,
    arguments: Sequence[str],
    *,
    directory: Path,
    workers: int = 2,
    timeout_s: float = 120.0,
    environ: Mapping[str, str] | None = None,
) -> list[Finished]:
    """Runs `script` once per worker, in one cluster, and waits for all.

    Args:
        script: a Python program.
        arguments: its arguments, the same for all workers.
        directory: where the workers' output is kept while they run.
        workers: how many; 0 runs one process without a cluster.
        timeout_s: for all together, in seconds.
        environ: variables added to this process's environment.

    Raises:
        WorkersFailedError: a worker ended with another status than 0, or not in time.
    """
    configs = [json.dumps(config) for config in _tf_configs(workers)] or [None]
    outputs = [directory / f"{script.stem}-worker-{index}.log" for index in range(len(configs))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for config, output in zip(configs, outputs, strict=True):
            processes.append(_start(script, arguments, config, output, environ or {}))
        in_time = _wait(processes, timeout_s)
    finally:
        for process in processes:
            _kill(process)
    finished = [
        Finished(index=index, returncode=process.returncode, output=output.read_text(errors="replace"))
        for index, (process, output) in enumerate(zip(processes, outputs, strict=True))
    ]
    if not in_time or any(one.returncode for one in finished):
        raise WorkersFailedError(_report(finished, in_time))
    return finished


def _tf_configs(workers: int) -> list[dict[str, object]]:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    return [
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        for index in range(workers)
    ]


def _start(
    script: Path, arguments: Sequence[str], config: str | None, output: Path, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", **environ}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), variables.get("PYTHONPATH")]))
    variables.pop("TF_CONFIG", None)
    if config is not None:
        variables["TF_CONFIG"] = config
    with output.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )


def _wait(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> bool:
    """Waits for all; once one has failed, for the others only a little longer."""
    end = time.monotonic() + timeout_s
    failed = False
    while any(process.poll() is None for process in processes):
        if not failed and any(process.returncode for process in processes):
            failed, end = True, min(end, time.monotonic() + _GRACE_S)
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends one worker and what it started; the session is its own, so nobody else is in the group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _report(finished: Sequence[Finished], in_time: bool) -> str:
    lines = ["all ended" if in_time else "not all ended in time; the rest was killed"]
    for one in finished:
        lines += [f"--- worker {one.index}: status {one.returncode}", one.output[-4000:]]
    return "\n".join(lines)
