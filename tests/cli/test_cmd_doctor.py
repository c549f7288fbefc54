import argparse
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from tf_preempt.cli import cmd_doctor
from tf_preempt.cli.doctor.examination import Report
from tf_preempt.cli.doctor.finding import Finding, Status

CLEAN = dict.fromkeys(
    ("TF_CONFIG", "SLURM_JOB_ID", "TF_PREEMPT_DIR", "TF_PREEMPT_DIR_OVERRIDE", "AIP_CHECKPOINT_DIR")
)


@pytest.fixture
def doctor(cli):
    return lambda *arguments, **environ: cli("doctor", *arguments, env={**CLEAN, **environ})


def test_one_worker_is_told_all_in_lines(doctor, tmp_path):
    result = doctor(str(tmp_path / "runs"), "--size-mb", "1")
    assert (result.rc, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines.pop(8).strip().startswith("HINT: right for a new training")
    assert all(re.match(r"(ok|info|warning|error) +[a-z-]+ +\S", line) for line in lines)
    names = [line.split()[1] for line in lines]
    assert names == [
        *("versions", "platform", "cluster", "task", "gpus", "peers"),
        *("directory", "writable", "speed", "saves"),
    ]
    assert "LocalClusterResolver" in lines[2]
    assert "1 MB written" in lines[8]
    assert not (tmp_path / "runs").exists()


def test_json_says_the_same(doctor, tmp_path):
    result = doctor("--directory", str(tmp_path), "--json", "--size-mb", "2")
    report = json.loads(result.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert (result.rc, report["exit_status"], report["rank"]) == (0, 0, 0)
    assert checks["speed"]["values"]["size_mb"] == 2
    assert checks["directory"]["values"] == {"directory": str(tmp_path)}


def test_an_error_is_status_1_and_has_its_cure(doctor, tmp_path):
    (tmp_path / "file").touch()
    result = doctor(str(tmp_path / "file" / "below"))
    assert result.rc == 1
    assert re.search(
        r"(?m)^error +writable +.*cannot be a directory: .*/file is a file\n +HINT: choose a directory",
        result.stdout,
    )
    assert "Traceback" not in result.stderr


def test_a_wrong_tf_config_is_a_finding_with_its_cure(doctor):
    result = doctor(TF_CONFIG="{")
    assert result.rc == 1
    assert re.search(r"(?m)^error +cluster +TF_CONFIG is not JSON.*\n +HINT: ", result.stdout)


def test_directory_comes_from_the_environment(doctor, tmp_path):
    result = doctor("--size-mb", "1", TF_PREEMPT_DIR=str(tmp_path))
    assert f"Checkpoints go to {tmp_path} (from TF_PREEMPT_DIR)." in result.stdout


def test_the_same_directory_twice_is_fine(doctor, tmp_path):
    assert doctor(str(tmp_path), "--directory", str(tmp_path), "--size-mb", "1").rc == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "--directory", "b"], "Two directories were given: 'a' and --directory='b'."),
        (["--size-mb", "0"], "--size-mb: '0' is not a whole number of 1 or more"),
        (["--timeout", "-1"], "--timeout: '-1' is not a number of seconds"),
        (["a", "b"], "unrecognized arguments: b"),
    ],
)
def test_wrong_usage_is_status_2(doctor, arguments, said):
    result = doctor(*arguments)
    assert result.rc == 2
    assert said in result.stderr


def under_launch(cli, entry, *arguments):
    return cli("launch", "--workers", "2", "--", *entry, "doctor", *arguments, env=CLEAN)


def test_workers_of_launch_meet_and_the_first_tells_all(cli, entry, tmp_path):
    result = under_launch(cli, entry, str(tmp_path / "runs"), "--size-mb", "1")
    assert result.rc == 0
    assert "[worker 0] ok      peers      1 of 1 other task(s) reached" in result.stdout
    assert "[worker 0] ok      shared     all 2 tasks see" in result.stdout
    assert "[worker 1]" not in result.stdout


def test_all_tasks_tell_all_if_asked_to(cli, entry):
    result = under_launch(cli, entry, "--all-tasks")
    for rank in (0, 1):
        line = f"[worker {rank}] rank {rank} (127.0.0.1): ok      peers      1 of 1 other task(s)"
        assert line in result.stdout


# Each worker has a directory of its own behind the same name: a disk that is not shared.
NOT_SHARED = (
    "import json, os, sys\n"
    "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
    "path = os.path.join(sys.argv[1], str(index))\n"
    "os.makedirs(path)\n"
    "os.environ['TF_PREEMPT_DIR_OVERRIDE'] = path\n"
    "from tf_preempt.cli.main import main\n"
    "main(['tf-preempt', 'doctor', '--size-mb', '1', *sys.argv[2:]])\n"
)


def test_other_tasks_tell_their_trouble(cli, tmp_path):
    program = [sys.executable, "-c", NOT_SHARED, str(tmp_path / "d")]
    result = cli("launch", "--workers", "2", "--", *program, env=CLEAN)
    assert result.rc == 1
    other = [line for line in result.stdout.splitlines() if line.startswith("[worker 1]")]
    assert len(other) == 2
    assert re.match(r"\[worker 1\] rank 1 \(127.0.0.1\): error   shared +Worker 1 does not see", other[0])
    assert re.match(r"\[worker 1\] rank 1 \(127.0.0.1\): +HINT: all workers need the same", other[1])


def test_json_is_one_object_with_the_trouble_of_all_tasks(cli, tmp_path):
    program = [sys.executable, "-c", NOT_SHARED, str(tmp_path / "d"), "--json"]
    result = cli("launch", "--no-prefix", "--workers", "2", "--", *program, env=CLEAN)
    assert result.rc == 1
    report = json.loads(result.stdout)
    assert [check["name"] for check in report["checks"] if check["rank"] == 1] == ["shared"]
    assert len(report["checks"]) > 6


def test_a_task_that_cannot_tell_the_first_prints_its_json_itself(doctor, free_port):
    cluster = {"worker": ["127.0.0.1:1", f"127.0.0.1:{free_port}"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
    report = json.loads(doctor("--json", "--timeout", "0.2", TF_CONFIG=config).stdout)
    assert (report["rank"], [check["name"] for check in report["checks"]]) == (1, ["peers"])


def test_the_exit_status_of_the_first_counts_the_errors_of_all(monkeypatch, capsys):
    error = Finding(Status.ERROR, "versions", "keras is old.", "install another")

    class Checked:
        def __init__(self, *_, **__):
            pass

        def make(self):
            return Report(findings=(), others={1: [error]})

    monkeypatch.setattr(cmd_doctor, "Examination", Checked)
    parser = argparse.ArgumentParser()
    cmd_doctor.add_arguments(parser)
    assert cmd_doctor.run(parser.parse_args([])) == 1
    assert capsys.readouterr().out == ""  # the others print their own


def test_a_port_that_is_taken_is_an_error_with_the_cure(doctor, free_port):
    cluster = {"worker": [f"127.0.0.1:{free_port}", "127.0.0.1:1"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    with socket.create_server(("", free_port)):
        result = doctor("--timeout", "0.3", TF_CONFIG=config)
    assert result.rc == 1
    assert re.search(rf"(?m)^error +port +Port {free_port} of 127.0.0.1 is taken.*\n +HINT: ", result.stdout)
    assert re.search(r"(?m)^error +peers +worker 1 \(127.0.0.1:1\) cannot be reached", result.stdout)


@pytest.mark.parametrize("moment", ["it writes", "it waits"])
def test_sigterm_leaves_nothing_behind_while(moment, start_cli, tmp_path, free_port):
    # The second worker never comes, so that the first waits for it with its file in the directory.
    cluster = {"worker": [f"127.0.0.1:{free_port}", "127.0.0.1:1"]}
    config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
    directory = tmp_path / "runs"
    started = start_cli("doctor", str(directory), "--timeout", "60", env={**CLEAN, "TF_CONFIG": config})

    def has_come():
        if moment == "it writes":
            return directory.exists() and os.listdir(directory)
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", free_port)) == 0

    end = time.monotonic() + 30
    while not has_come():
        assert time.monotonic() < end, f"{moment}: not within 30 s"
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"It left with {started.process.wait(0.01)} before {moment}.")
    started.process.send_signal(signal.SIGTERM)
    result = started.wait(30)
    assert (result.rc, result.stdout, result.stderr) == (143, "", "")
    assert not directory.exists()


def test_a_task_that_is_not_the_first_tells_its_rank_and_host_even_without_a_cluster(doctor):
    result = doctor(SLURM_JOB_ID="1", SLURM_STEP_ID="0", SLURM_PROCID="3")
    assert result.rc == 1
    assert re.fullmatch(r"(rank 3 \(\S+\): (error   cluster|  +HINT:) .*\n){2}", result.stdout)


def test_nothing_heavy_is_imported(start_script, tmp_path):
    source = (
        "import sys\n"
        "from tf_preempt.cli.main import main\n"
        "try:\n"
        f"    main(['tf-preempt', 'doctor', {str(tmp_path / 'runs')!r}, '--size-mb', '1'])\n"
        "finally:\n"
        "    print(sorted({'tensorflow', 'keras', 'numpy', 'rich', 'requests'} & set(sys.modules)))\n"
    )
    result = start_script(source, env=CLEAN).wait(60)
    assert result.rc == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_has_an_example(cli):
    result = cli("doctor", "--help")
    assert result.rc == 0
    assert "Example: exec srun tf-preempt doctor " in result.stdout
