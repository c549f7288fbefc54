import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE_ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}

WAIT = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(120)"


def python(source, *arguments):
    return [sys.executable, "-c", source, *arguments]


def test_arguments_reach_the_workers_untouched(cli):
    result = cli(
        "launch", "--workers", "2", "--", *python("import sys; print(sys.argv[1:])", "--workers", "--", "y z")
    )
    assert result.rc == 0
    assert sorted(result.stdout.splitlines()) == [
        f"[worker {i}] ['--workers', '--', 'y z']" for i in range(2)
    ]


def test_there_are_two_workers_by_default(cli):
    assert cli("launch", "--", *python("print('x')")).stdout.count("x") == 2


def test_prefix_can_be_left_out(cli):
    assert cli("launch", "--workers", "1", "--no-prefix", "--", *python("print('x')")).stdout == "x\n"


def test_host_can_be_chosen(cli):
    source = "import os; print(os.environ['TF_CONFIG'])"
    assert '"localhost:' in cli("launch", "--host", "localhost", "--", *python(source)).stdout


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("", 0),
        ("raise SystemExit(42)", 42),
        ("1/0", 1),
        ("import os; os.kill(os.getpid(), 9)", 137),
    ],
)
def test_status_is_the_workers(cli, source, status):
    assert cli("launch", "--", *python(source)).rc == status


def test_users_restart_code_does_not_hide_an_error(cli):
    source = "import os; raise SystemExit(1 if '\"index\": 1' in os.environ['TF_CONFIG'] else 7)"
    assert cli("launch", "--", *python(source)).rc == 7
    assert cli("launch", "--restart-exit-codes", "7,8", "--", *python(source)).rc == 1


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_signal_ends_all_workers(start_cli, gone_after, signum, status):
    cli = start_cli("launch", "--", *python(WAIT))
    with gone_after(cli, 2):
        cli.process.send_signal(signum)
        result = cli.wait(30)
    # Python leaves after SIGINT with a traceback, and then by SIGINT itself.
    assert result.rc == status
    assert f"tf-preempt: passing {signum.name} on" in result.stderr


def test_stubborn_workers_are_killed_after_the_time_out(start_cli, gone_after):
    cli = start_cli(
        "launch",
        "--stop-timeout",
        "0.3",
        "--",
        *python("import signal; signal.signal(15, signal.SIG_IGN)\n" + WAIT),
    )
    with gone_after(cli, 2):
        cli.process.terminate()
        assert cli.wait(30).rc == 137


def test_workers_of_a_killed_launcher_get_sigterm(start_cli, gone_after):
    cli = start_cli("launch", "--", *python(WAIT))
    with gone_after(cli, 2):
        cli.process.kill()
        cli.process.wait(10)


def test_worker_killed_from_outside_ends_the_cluster_with_a_restart_status(start_cli, gone_after):
    cli = start_cli("launch", "--stop-timeout", "0.3", "--", *python(WAIT))
    with gone_after(cli, 2) as workers:
        workers[0].kill()  # the first to speak, whichever that is; SIGTERM ends the other one
        assert cli.wait(30).rc in (137, 143)


def test_reader_of_the_output_may_go_away(entry, tmp_path):
    command = [*entry, "launch", "--", *python("for i in range(20000): print('x' * 100)")]
    errors = tmp_path / "errors"
    with errors.open("wb") as stderr:
        cli = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=PACKAGE_ENVIRON)
    assert cli.stdout.readline().startswith(b"[worker ")
    cli.stdout.close()
    assert cli.wait(60) == 0
    assert "the workers' output is lost" in errors.read_text()
