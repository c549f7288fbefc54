import io
import json
import os
import re
import signal
import socket
import sys
import threading

import psutil
import pytest

from tf_preempt.errors import ConfigError, LaunchError
from tf_preempt.launch import local_cluster, tree_watch
from tf_preempt.launch.local_cluster import LocalCluster
from tf_preempt.launch.process_tree import ProcessTree
from tf_preempt.launch.tree_watch import TreeWatch


class Output(io.BytesIO):
    """Collects output and can wait for it."""

    def __init__(self):
        super().__init__()
        self._more = threading.Condition()

    def write(self, content):
        with self._more:
            super().write(content)
            self._more.notify_all()

    @property
    def lines(self):
        return self.getvalue().decode().splitlines()

    def wait_for(self, text, count=1):
        with self._more:
            assert self._more.wait_for(lambda: self.getvalue().count(text.encode()) >= count, 30), self.lines


@pytest.fixture
def output():
    return Output()


@pytest.fixture
def cluster(output):
    clusters = []

    def make(source, *arguments, **options):
        options = {"output": output, "stop_timeout_s": 20.0, **options}
        clusters.append(LocalCluster([sys.executable, "-c", source, *arguments], **options))
        return clusters[-1]

    yield make
    for made in clusters:
        made.close()


INDEX = "import json, os\nindex = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
READY_AND_WAIT = "import time\nprint('ready', flush=True)\ntime.sleep(120)\n"
SAVES_ON_SIGTERM = (
    "import signal, sys\n"
    "def save(signum, _):\n"
    "    signal.signal(signum, signal.SIG_IGN)\n"  # it may come a second time
    "    print('saved', flush=True)\n"
    "    sys.exit(42)\n"
    "signal.signal(signal.SIGTERM, save)\n" + READY_AND_WAIT
)
SAVES_ON_WARNING = SAVES_ON_SIGTERM.replace("SIGTERM", "SIGUSR1")
STUBBORN = (
    "import signal\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + READY_AND_WAIT
)


@pytest.mark.parametrize("workers", [1, 3])
def test_each_worker_is_told_the_same_cluster_and_its_own_place(cluster, output, workers):
    assert cluster("import os; print(os.environ['TF_CONFIG'])", workers=workers).run() == 0
    told = {}
    for line in output.lines:
        worker, config = re.fullmatch(r"\[worker (\d)\] (.*)", line).groups()
        told[int(worker)] = json.loads(config)
    addresses = told[0]["cluster"]["worker"]
    assert told == {
        i: {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}} for i in range(workers)
    }
    assert len(set(addresses)) == workers
    assert all(re.fullmatch(r"127\.0\.0\.1:\d{4,5}", address) for address in addresses)


def test_workers_can_listen_on_the_ports_that_they_are_told(cluster):
    source = INDEX + (
        "import socket\n"
        "host, port = json.loads(os.environ['TF_CONFIG'])['cluster']['worker'][index].split(':')\n"
        "socket.create_server((host, int(port)))\n"
    )
    assert cluster(source, workers=4).run() == 0


def test_host_is_what_the_workers_are_told(cluster, output):
    assert cluster("import os; print(os.environ['TF_CONFIG'])", workers=1, host="localhost").run() == 0
    assert "localhost:" in output.lines[0]


def test_ipv6_addresses_get_brackets(cluster, output):
    if not _has_ipv6_loopback():
        with pytest.raises(LaunchError, match="host='::1'"):
            cluster("", workers=1, host="::1").run()
        return
    assert cluster("import os; print(os.environ['TF_CONFIG'])", workers=1, host="::1").run() == 0
    assert '"[::1]:' in output.lines[0]


def _has_ipv6_loopback():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_host_of_another_machine_is_refused(cluster):
    with pytest.raises(LaunchError, match=r"host='192.0.2.1'(.|\n)*HINT"):
        cluster("", host="192.0.2.1").run()


def test_workers_get_the_given_environment_and_a_tf_config_in_it_is_replaced(cluster, output, caplog):
    environ = {**os.environ, "COLOUR": "red", "TF_CONFIG": "{}", "TF_PREEMPT_STATUS_FILE": "/x"}
    source = INDEX + "print(index, os.environ['COLOUR'], os.environ['TF_PREEMPT_STATUS_FILE'])"
    assert cluster(source, environ=environ).run() == 0
    assert sorted(output.lines) == ["[worker 0] 0 red /x", "[worker 1] 1 red /x"]
    assert "TF_CONFIG" in caplog.text


def test_output_comes_while_the_workers_run(cluster, output):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with cluster("import time; print('hello'); time.sleep(120)", environ=environ):
        output.wait_for("hello", count=2)


def test_last_line_without_an_end_errors_and_all_of_much_output_arrive(cluster, output):
    source = (
        "import sys\nfor i in range(20000): print(i)\nprint('oops', file=sys.stderr)\nprint('end', end='')\n"
    )
    assert cluster(source).run() == 0
    for worker in ("[worker 0] ", "[worker 1] "):
        mine = [line.removeprefix(worker) for line in output.lines if line.startswith(worker)]
        assert mine == [*map(str, range(20000)), "oops", "end"]


def test_progress_bar_shows_its_last_state_and_one_now_and_then(cluster, output):
    source = (
        "import sys, time\n"
        "for i in range(30):\n"
        "    sys.stdout.write('\\r%d of 30' % (i + 1)); sys.stdout.flush(); time.sleep(0.05)\n"
        "print()\n"
    )
    assert cluster(source, workers=1).run() == 0
    assert output.lines[-1] == "[worker 0] 30 of 30"
    assert 2 <= len(output.lines) < 20


def test_all_output_is_written_when_the_waiting_is_over(cluster):
    class Slow(Output):
        def write(self, content):
            threading.Event().wait(0.3)
            super().write(content)

    slow = Slow()
    assert cluster("print('x')", output=slow).run() == 0
    assert sorted(slow.lines) == ["[worker 0] x", "[worker 1] x"]


def test_without_prefix_output_is_passed_on_as_it_is(cluster, output):
    assert cluster("import sys; sys.stdout.buffer.write(b'a\\r\\xffb')", workers=1, prefix=False).run() == 0
    assert output.getvalue() == b"a\r\xffb"


def test_output_may_be_a_text_file(cluster):
    text = io.StringIO()
    assert cluster("print('é')", workers=1, output=text, environ={**os.environ, "PYTHONUTF8": "1"}).run() == 0
    assert text.getvalue() == "[worker 0] é\n"


def test_output_goes_to_standard_output_by_default(cluster, capfdbinary):
    assert cluster("print('hello')", workers=1, output=None).run() == 0
    assert capfdbinary.readouterr().out == b"[worker 0] hello\n"


def test_reader_that_goes_away_does_not_hold_the_workers_up(cluster, caplog):
    class Gone(io.BytesIO):
        def write(self, content):
            raise BrokenPipeError("gone")

    assert cluster("print('x' * 1_000_000)", output=Gone()).run() == 0
    assert caplog.text.count("output is lost") == 1


@pytest.mark.parametrize(
    ("ends", "exit_code"),
    [([0, 0], 0), ([42, 42], 42), ([42, 0], 42), ([1, 42], 1), ([0, 3], 3), ([137, 143], 137)],
)
def test_cluster_ends_as_its_workers_do(cluster, ends, exit_code):
    assert cluster(INDEX + f"raise SystemExit({ends}[index])").run() == exit_code


def test_users_restart_code_is_one_for_the_cluster_too(cluster):
    source = INDEX + "raise SystemExit([7, 42][index])"
    assert cluster(source).run() == 7
    assert cluster(source, restart_codes=frozenset({7})).run() == 7
    assert cluster(INDEX + "raise SystemExit([7, 1][index])", restart_codes=frozenset({7})).run() == 1


def test_signal_is_passed_on_to_all_workers(cluster, output):
    with cluster(SAVES_ON_SIGTERM) as started:
        output.wait_for("ready", count=2)
        started.forward(signal.SIGTERM)
        assert started.wait(30)
    assert started.exit_code == 42
    assert output.getvalue().count(b"saved") == 2


def test_signal_to_this_process_is_passed_on_to_all_workers(cluster, output):
    timer = threading.Thread(
        target=lambda: (output.wait_for("ready", 2), os.kill(os.getpid(), signal.SIGTERM))
    )
    timer.start()
    assert cluster(SAVES_ON_SIGTERM).run() == 42
    timer.join(30)
    assert output.getvalue().count(b"saved") == 2


def test_warning_to_everything_in_a_step_is_one_for_the_workers_and_ends_no_launcher(cluster, output):
    def warn_everybody():
        output.wait_for("ready", 2)
        for pid in [os.getpid(), *started.pids]:
            os.kill(pid, signal.SIGUSR1)

    started = cluster(SAVES_ON_WARNING)
    thread = threading.Thread(target=warn_everybody)
    thread.start()
    # The second signal may find a worker whose Python has ended, and end it: 138, which means "again" too.
    assert started.run() in (42, 138)
    thread.join(30)
    assert output.getvalue().count(b"saved") == 2


def test_one_worker_can_be_signalled_alone(cluster, output):
    with cluster(SAVES_ON_SIGTERM) as started:
        output.wait_for("ready", count=2)
        started.send_signal(1, signal.SIGTERM)
        output.wait_for("saved")
        assert not started.wait(0.1)
        assert started.returncodes[0] is None
    assert "[worker 1] saved" in output.lines


def test_unknown_worker_cannot_be_signalled(cluster):
    with cluster(READY_AND_WAIT) as started, pytest.raises(ConfigError, match="worker=2"):
        started.send_signal(2, signal.SIGTERM)


def test_peers_of_a_killed_worker_may_leave_by_themselves(cluster, output):
    source = INDEX + (
        "import sys, signal, time\n"
        "print('ready', flush=True)\n"
        "if index == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(0.5); sys.exit(42)\n"
    )
    assert cluster(source).run() == 42


def test_peers_of_a_dead_worker_that_hang_are_ended_in_time(cluster):
    source = INDEX + "import sys\nif index == 0: sys.exit(1)\n" + STUBBORN
    started = cluster(source, workers=3, stop_timeout_s=0.3)
    assert started.run() == 1
    assert started.returncodes == [1, -9, -9]


def test_peers_of_a_worker_that_has_finished_go_on(cluster, output):
    source = INDEX + "import time\nif index == 1: time.sleep(1.0)\nprint('done', index)\n"
    assert cluster(source, stop_timeout_s=0.0).run() == 0
    assert "[worker 1] done 1" in output.lines


def test_worker_that_ignores_signals_is_killed_after_the_time_out(cluster, output):
    with cluster(STUBBORN, stop_timeout_s=0.3) as started:
        output.wait_for("ready", count=2)
        started.forward(signal.SIGTERM)
        assert started.wait(30)
    assert started.returncodes == [-9, -9]


def test_nothing_is_left_of_a_worker_that_is_a_shell(cluster, output, gone):
    command = ["sh", "-c", f'"{sys.executable}" -c "$0"; exit 5', SAVES_ON_SIGTERM]
    started = LocalCluster(command, workers=1, output=output, stop_timeout_s=20.0)
    with started:
        output.wait_for("ready")
        (python,) = psutil.Process(started.pids[0]).children()
        started.forward(signal.SIGTERM)
        assert started.wait(30)
    assert gone(python)
    assert output.lines[-1] == "[worker 0] saved"  # though the shell died first and passed nothing on


def test_worker_that_survives_sigkill_does_not_keep_us(cluster, output, monkeypatch):
    real_kill, trees = ProcessTree.kill, []
    monkeypatch.setattr(tree_watch, "_AFTER_KILL_S", 0.1)
    monkeypatch.setattr(ProcessTree, "kill", lambda tree: trees.append(tree))
    made = cluster(
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(20)\n",
        workers=1,
        stop_timeout_s=0.0,
    )
    made.start()
    output.wait_for("ready")
    made.forward(signal.SIGTERM)
    assert not made.wait()
    made.close()
    assert made.returncodes == [None]
    real_kill(trees[0])
    assert made.wait(30)


def test_workers_that_survive_sigkill_make_running_them_an_error(cluster, monkeypatch):
    monkeypatch.setattr(TreeWatch, "wait", lambda watch, timeout_s=None: False)
    made = cluster("", workers=1)
    with pytest.raises(LaunchError, match=r"(?s)not all have ended.*HINT: they hang"):
        made.run()
    monkeypatch.undo()
    assert made.wait(30)


def test_process_that_a_worker_leaves_behind_does_not_keep_us_with_its_hold_on_the_output(
    cluster, output, monkeypatch, caplog
):
    monkeypatch.setattr(local_cluster, "_OUTPUT_TIMEOUT_S", 0.2)
    leaves_one_behind = (
        "import subprocess, sys\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        " env={}, start_new_session=True)\n"
        "print('left', left.pid, flush=True)\n"
    )
    made = cluster(leaves_one_behind, workers=1, prefix=False)
    made.start()
    assert made.wait(30)
    left = psutil.Process(int(output.lines[0].split()[1]))
    assert left.is_running()
    assert "keeps their output open" in caplog.text
    left.kill()
    monkeypatch.setattr(local_cluster, "_OUTPUT_TIMEOUT_S", 30.0)
    assert made.wait(30)


def test_closing_ends_everything_and_again_is_fine(cluster, output, gone):
    started = cluster(STUBBORN)
    started.start()
    output.wait_for("ready", count=2)
    workers = [psutil.Process(pid) for pid in started.pids]
    started.close()
    started.close()
    assert all(gone(worker) for worker in workers)


def test_closing_what_was_not_started_is_fine(cluster):
    cluster("").close()


@pytest.mark.parametrize("action", [lambda c: c.wait(), lambda c: c.forward(signal.SIGTERM)])
def test_cluster_has_to_be_started_first(cluster, action):
    with pytest.raises(LaunchError, match="not been started"):
        action(cluster(""))


def test_cluster_can_be_started_once_only(cluster):
    started = cluster("")
    assert started.run() == 0
    with pytest.raises(LaunchError, match="once only"):
        started.start()


@pytest.mark.parametrize(
    ("wrong", "named"), [({"workers": 0}, "workers=0"), ({"stop_timeout_s": -1.0}, "stop_timeout_s=-1")]
)
def test_wrong_number_is_named(wrong, named):
    with pytest.raises(ConfigError, match=named):
        LocalCluster(["true"], **wrong)


def test_command_that_is_not_there_is_named_before_anything_is_started():
    with pytest.raises(LaunchError, match="'no-such-program'"):
        LocalCluster(["no-such-program"])
