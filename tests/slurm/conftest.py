"""A private Slurm of three nodes for the tests in this folder, started once and stopped at the end."""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.cluster import run_workers
from tests.slurm import stages
from tests.slurm.jobs import PROGRAM

SANDBOX = Path(__file__).with_name("slurm_sandbox.py")
REPOSITORY = Path(__file__).parents[2]


class Cluster:
    """A running sandbox and its client commands."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._environ = {
            **os.environ,
            "SLURM_SANDBOX_DIR": str(directory),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }

    def verb(self, *words, timeout_s=60) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, str(SANDBOX), *words],
            env=self._environ,
            timeout=timeout_s,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )

    def scontrol(self, *words) -> subprocess.CompletedProcess:
        """`scontrol` directly: it is asked hundreds of times."""
        return subprocess.run(
            ["scontrol", *words],
            env={**self._environ, "SLURM_CONF": str(self._directory / "etc" / "slurm.conf")},
            timeout=20,
            check=False,
            text=True,
            capture_output=True,
        )

    def client(self, *words, timeout_s=60) -> str:
        """Standard output of a Slurm command, which has to succeed."""
        done = self.verb("exec", *words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{words} left with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


def comes_last(test):
    """A test that waits for what was begun long before; it runs after the others of this folder."""
    test.comes_last = True
    return test


def pytest_collection_modifyitems(items):
    """Puts some of these tests last; leaves all out, and says so, where Slurm is missing, but for CI."""
    places = [i for i, item in enumerate(items) if Path(__file__).parent in item.path.parents]
    ordered = sorted((items[i] for i in places), key=lambda item: hasattr(item.function, "comes_last"))
    for i, item in zip(places, ordered, strict=True):
        items[i] = item
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin"
    if os.environ.get("CI") or shutil.which("slurmctld", path=path):
        return
    missing = pytest.mark.skip(reason="no Slurm here; apt-get install slurm-wlm munge, or run .ci/run")
    for item in ordered:
        item.add_marker(missing)


@contextlib.contextmanager
def running(*options):
    """A Slurm of the nodes n9, n10 and n11, stopped at the end."""
    # Slurm's sockets lie in this directory, and a socket's path is short: pytest's own is too long.
    parent = Path(tempfile.mkdtemp(prefix="tfp-"))
    parent.chmod(0o755)  # munged wants every directory above its socket to be passable for all
    cluster = Cluster(parent / "s")
    started = cluster.verb("start", "--nodes", "3", "--prefix", "n", "--first", "9", *options)
    try:
        assert started.returncode == 0, (
            f"No Slurm to test with (Debian: apt-get install slurm-wlm munge):\n{started.stderr}"
        )
        yield cluster
    finally:
        stopped = cluster.verb("stop")
        shutil.rmtree(parent, ignore_errors=True)
    assert stopped.returncode == 0, stopped.stderr


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """Gives the result of so many workers that nobody disturbs, trained without Slurm, once for all tests."""

    @functools.cache
    def train(workers):
        place = tmp_path_factory.mktemp(f"undisturbed-{workers}")
        run_workers(
            PROGRAM,
            [str(place / "checkpoints")],
            directory=place,
            workers=workers,
            environ={"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
        )
        return json.loads((place / "result.json").read_text(encoding="utf-8"))

    return train


@pytest.fixture(scope="session")
def slurm():
    with running() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slurm_with_gpus():
    """Four GPUs on each node, as far as Slurm knows."""
    with running("--gpus-per-node", "4") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def slurm_with_uneven_gpus():
    """Four GPUs on n9, two on n10 and none on n11, as far as Slurm knows."""
    with running("--gpus-per-node", "4,2,0") as cluster:
        yield cluster


@pytest.fixture
def slurm_that_reserves_ports():
    """With MpiParams, steps get ports without asking: one more than the tasks on a node."""
    with running("--extra-conf", "MpiParams=ports=12000-12099") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def scenes(request, cluster, undisturbed, tmp_path_factory):
    """Starts all staged tests of the module that are to be run, a few at a time, and gives their futures."""
    results = {workers: undisturbed(workers) for workers in (2, 3)}
    wanted = {item.originalname for item in request.session.items if item.fspath == request.fspath}
    pool, futures = stages.play(request.module.__name__, wanted, cluster, results, tmp_path_factory.mktemp)
    with pool:
        yield futures
