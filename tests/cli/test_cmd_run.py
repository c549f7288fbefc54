import json
import signal
import sys

import pytest

LIVES = (
    "import os, sys\n"
    "with open('lives', 'a+') as file:\n"
    "    file.write('x'); file.seek(0); life = len(file.read())\n"
    "print('life', life, flush=True)\n"
)
WAIT = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(120)"
QUICK = ["--backoff-initial", "0.01", "--backoff-max", "0.02"]


def python(source, *arguments):
    return [sys.executable, "-c", source, *arguments]


def test_preempted_program_is_run_again_and_each_decision_said(cli):
    result = cli("run", *QUICK, "--", *python(LIVES + "sys.exit(42 if life < 3 else 0)"))
    assert result.rc == 0
    assert result.stdout == "life 1\nlife 2\nlife 3\n"
    assert result.stderr == (
        "tf-preempt: restarting in 0.0 s (restart 1 of 10): exit status 42 = preempted\n"
        "tf-preempt: restarting in 0.0 s (restart 2 of 10): exit status 42 = preempted\n"
        "tf-preempt: not restarting: exit status 0 = finished\n"
    )


@pytest.mark.parametrize(("tasks", "told"), [("2", " [task 1]\n"), ("1", "finished\n")])
def test_in_a_step_of_several_tasks_each_line_says_whose_it_is(cli, tasks, told):
    step = {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(int(tasks) - 1),
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": tasks,
    }
    result = cli("run", "--", *python("pass"), env=step)
    assert result.stderr.startswith("tf-preempt: not restarting: exit status 0 = finished")
    assert result.stderr.endswith(told)


def test_budget_can_be_chosen(cli):
    result = cli("run", *QUICK, "--max-restarts", "1", "--", *python(LIVES + "sys.exit(42)"))
    assert (result.rc, result.stdout.count("life")) == (42, 2)


def test_restart_statuses_can_be_added(cli):
    result = cli(
        "run", *QUICK, "--restart-exit-codes", "7,8", "--", *python(LIVES + "sys.exit([0, 7, 8, 9][life])")
    )
    assert (result.rc, result.stdout.count("life")) == (9, 3)


def test_patience_without_progress_can_be_chosen(cli):
    source = LIVES + (
        "import json\n"
        "json.dump({'format': 1, 'incarnation': life}, open(os.environ['TF_PREEMPT_STATUS_FILE'], 'w'))\n"
        "sys.exit(42)\n"
    )
    result = cli("run", *QUICK, "--max-no-progress", "4", "--", *python(source))
    assert (result.rc, result.stdout.count("life")) == (1, 4)
    assert "no progress 4 times in a row" in result.stderr


def test_long_first_wait_needs_no_second_option(start_cli):
    cli = start_cli("run", "--backoff-initial", "3600", "--", *python(LIVES + "sys.exit(42)"))
    cli.wait_for("life 1", 30)
    cli.process.terminate()
    assert cli.wait(30).rc in (42, 143)


def test_input_reaches_the_program(cli):
    assert cli("run", "--", *python("import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_ends_the_program_and_the_series(start_cli, gone_after, signum, status):
    cli = start_cli("run", "--", *python(WAIT))
    with gone_after(cli, 1):
        cli.process.send_signal(signum)
        assert cli.wait(30).rc == status


class TestWithLaunchInside:
    """``tf-preempt run -- tf-preempt launch -- program``."""

    def test_all_arguments_arrive(self, cli, entry):
        program = python("import sys; print(sys.argv[1:])", "--flag", "--", "y")
        result = cli("run", "--", *entry, "launch", "--workers", "2", "--", *program)
        assert result.rc == 0
        assert sorted(result.stdout.splitlines()) == [f"[worker {i}] ['--flag', '--', 'y']" for i in range(2)]

    def test_cluster_is_restarted_until_it_finishes_and_the_chief_tells_its_progress(self, cli, entry):
        source = (
            "import json, os, sys\n"
            "index = json.loads(os.environ['TF_CONFIG'])['task']['index']\n"
            "with open(f'lives-{index}', 'a+') as file:\n"
            "    file.write('x'); file.seek(0); life = len(file.read())\n"
            "if index == 0:\n"
            "    status = {'format': 1, 'incarnation': life, 'committed_step': 100 * life, 'commits': 1}\n"
            "    json.dump(status, open(os.environ['TF_PREEMPT_STATUS_FILE'], 'w'))\n"
            "sys.exit(42 if life < 4 else 0)\n"
        )
        result = cli("run", *QUICK, "--", *entry, "launch", "--", *python(source))
        assert result.rc == 0
        for life in (1, 2, 3):
            assert (
                f"(restart {life} of 10): exit status 42 = preempted, committed step {100 * life}"
                in result.stderr
            )

    @pytest.mark.parametrize(("signum", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
    def test_signal_reaches_the_workers_once(self, start_cli, entry, gone_after, signum, status):
        source = (
            "import signal, sys\n"
            "def leave(signum, _):\n"
            "    print('got', signum, flush=True)\n"
            "    sys.exit(128 + signum)\n"
            f"signal.signal({int(signum)}, leave)\n" + WAIT
        )
        cli = start_cli("run", "--", *entry, "launch", "--", *python(source))
        with gone_after(cli, 2):
            cli.process.send_signal(signum)
            result = cli.wait(30)
        assert result.rc == status
        assert result.stdout.count(f"got {int(signum)}") == 2

    def test_killed_launcher_is_restarted_without_its_old_workers(self, start_cli, entry, gone_after):
        cli = start_cli("run", *QUICK, "--", *entry, "launch", "--", *python(WAIT))
        with gone_after(cli, 2) as workers:
            workers[0].parent().kill()
            cli.wait_for(r"(?s)(pid \d+.*){4}", 30)
        cli.process.terminate()
        assert cli.wait(30).rc == 143

    def test_killed_supervisor_takes_all_along(self, start_cli, entry, gone_after):
        cli = start_cli("run", "--", *entry, "launch", "--", *python(WAIT))
        with gone_after(cli, 2):
            cli.process.kill()
            cli.process.wait(10)


def test_program_sees_that_it_is_supervised(cli):
    source = "import json, os; print(json.dumps(os.environ['TF_PREEMPT_STATUS_FILE']))"
    assert json.loads(cli("run", "--", *python(source)).stdout).endswith("status.json")
