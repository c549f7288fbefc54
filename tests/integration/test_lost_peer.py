"""A worker is killed, stopped or cut off: the other leaves for a restart, and says which and since when."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Script, ScriptResult
from tests.integration.cluster import ROOT, free_ports
from tf_preempt.errors import ConfigError
from tf_preempt.strategies import MultiWorkerMirroredStrategy

SCRIPT = ROOT / "tests" / "integration" / "scripts" / "lost_peer.py"
START_TIMEOUT_S = 150.0
LEAVE_TIMEOUT_S = 60.0
DEFAULT_TIMEOUT_S = 6.0

can_cut = os.geteuid() == 0 and shutil.which("ip") is not None
needs_namespaces = pytest.mark.skipif(
    not can_cut and "CI" not in os.environ, reason="needs root, and ip of the package iproute2"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """How a worker is lost.

    Args:
        how: ``kill``, ``stop`` or ``cut``.
        lost: which worker; of two that are cut off from each other, both leave.
        phase: of the training.
        peer_timeout_s: an argument of the strategy; None: left out.
    """

    how: str
    lost: int
    phase: str = "train"
    peer_timeout_s: float | None = None

    @property
    def survivors(self) -> list[int]:
        return [0, 1] if self.how == "cut" else [1 - self.lost]

    @property
    def timeout_s(self) -> float:
        return self.peer_timeout_s or DEFAULT_TIMEOUT_S


@dataclasses.dataclass(frozen=True)
class Network:
    """Where each of two workers runs, and what takes the network away between them."""

    hosts: tuple[str, str]
    prefixes: tuple[list[str], list[str]]
    cut: Callable[[], None]


def run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


@contextlib.contextmanager
def two_namespaces() -> Iterator[Network]:
    """Two network namespaces with a cable between them."""
    names = [f"tf-{uuid.uuid4().hex[:8]}-{index}" for index in range(2)]
    hosts = ("10.213.7.1", "10.213.7.2")

    def cut() -> None:
        # A wrong address of the other's card: what is sent arrives nowhere, and nobody is told.
        for name, other in zip(names, reversed(hosts), strict=True):
            neighbour = (other, "lladdr", "02:00:00:00:00:99", "dev", "cable", "nud", "permanent")
            run_ip("-n", name, "neigh", "replace", *neighbour)

    try:
        for name in names:
            run_ip("netns", "add", name)
            run_ip("-n", name, "link", "set", "lo", "up")
        other_end = ("peer", "name", "cable", "netns", names[1])
        run_ip("link", "add", "cable", "netns", names[0], "type", "veth", *other_end)
        for name, host in zip(names, hosts, strict=True):
            run_ip("-n", name, "address", "add", f"{host}/24", "dev", "cable")
            run_ip("-n", name, "link", "set", "cable", "up")
        inside = [["ip", "netns", "exec", name] for name in names]
        yield Network(hosts, (inside[0], inside[1]), cut)
    finally:
        for name in names:
            if Path("/run/netns", name).exists():
                run_ip("netns", "delete", name)


@contextlib.contextmanager
def loopback() -> Iterator[Network]:
    yield Network(("127.0.0.1", "127.0.0.1"), ([], []), lambda: None)


def start(case: Case, network: Network, directory: Path, index: int, addresses: list[str]) -> Script:
    task = {"type": "worker", "index": index}
    environ = {
        **os.environ,
        "TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": task}),
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    arguments = [str(directory / "checkpoints"), case.phase]
    if case.peer_timeout_s is not None:
        arguments.append(str(case.peer_timeout_s))
    command = [*network.prefixes[index], sys.executable, str(SCRIPT), *arguments]
    return Script(command, environ, directory, f"worker-{index}")


def lose(case: Case, directory: Path) -> dict[int, ScriptResult]:
    """How the workers end that are left."""
    scripts: list[Script] = []
    with two_namespaces() if case.how == "cut" else loopback() as network:
        addresses = [f"{host}:{port}" for host, port in zip(network.hosts, free_ports(2), strict=True)]
        try:
            for index in range(2):
                scripts.append(start(case, network, directory, index, addresses))
            for script in scripts:
                script.wait_for("under way", START_TIMEOUT_S)
            if case.how == "cut":
                network.cut()
            else:
                scripts[case.lost].process.send_signal(
                    signal.SIGKILL if case.how == "kill" else signal.SIGSTOP
                )
            return {index: scripts[index].wait(LEAVE_TIMEOUT_S) for index in case.survivors}
        finally:
            for script in scripts:
                script.kill()


def check(case: Case, ended: dict[int, ScriptResult]) -> None:
    assert sorted(ended) == case.survivors
    for index, result in ended.items():
        assert result.rc == 42, result.stderr[-8000:]
        assert f"heartbeats {1000 * case.timeout_s:.0f} ms" in result.stdout
        (said,) = re.findall(r"Another worker is lost \((.*)\); leaving for a restart\.", result.stderr)
        told = re.match(r"(.*?), no step was done since \d{4}-\d\d-\d\dT[\d:]+Z, ([\d.]+) s ago: .", said)
        assert told is not None, said
        names = [f"/job:worker/task:{1 - index}"] + ["the chief"] * index
        assert told[1] in names
        if case.how != "kill":
            # Heartbeats come twice as often as that, so at least the half has passed since the loss.
            assert float(told[2]) >= case.timeout_s / 2
        assert "Leaving with exit status 42." in result.stderr


CASES = {
    "killed chief": Case(how="kill", lost=0),
    "stopped chief, another time-out": Case(how="stop", lost=0, peer_timeout_s=3.0),
    "cut network": Case(how="cut", lost=1),
}
LONG_CASES = {
    "killed worker": Case(how="kill", lost=1),
    "killed worker in a validation": Case(how="kill", lost=1, phase="validate", peer_timeout_s=2.0),
    "stopped chief in a validation": Case(how="stop", lost=0, phase="validate"),
    "stopped worker": Case(how="stop", lost=1),
}


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How all cases end, which wait most of their time and so run beside each other."""
    cases = {name: case for name, case in CASES.items() if case.how != "cut" or can_cut}
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return {
            name: pool.submit(lose, case, tmp_path_factory.mktemp("lost")) for name, case in cases.items()
        }


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_namespaces if "cut" in name else ()) for name in CASES]
)
def test_the_other_worker_leaves_for_a_restart_and_says_who_is_lost_and_since_when(
    endings: dict[str, Any], name: str
) -> None:
    assert name in endings, "ip of the package iproute2, and root, are needed"
    check(CASES[name], endings[name].result())


@pytest.mark.parametrize("value", [0, 0.5, -1, float("inf"), float("nan"), True, "8", None], ids=repr)
def test_a_time_out_that_cannot_be_is_refused(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"peer_timeout_s=.*expected a number of seconds, 1 or more\.\nHINT"
    ):
        MultiWorkerMirroredStrategy(peer_timeout_s=value)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LONG_CASES)
def test_wherever_a_worker_is_lost(tmp_path: Path, name: str) -> None:
    check(LONG_CASES[name], lose(LONG_CASES[name], tmp_path))
