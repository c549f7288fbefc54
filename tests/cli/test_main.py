import pytest

from tf_preempt import __version__
from tf_preempt.cli.main import split_command


@pytest.mark.parametrize(
    ("arguments", "options", "command"),
    [
        ([], [], None),
        (["run"], ["run"], None),
        (["run", "--"], ["run"], []),
        (["run", "--", "x", "--y"], ["run"], ["x", "--y"]),
        (
            ["run", "--n", "1", "--", "launch", "--", "x", "--", "y"],
            ["run", "--n", "1"],
            ["launch", "--", "x", "--", "y"],
        ),
        (["--", "--"], [], ["--"]),
    ],
)
def test_command_is_what_stands_behind_the_first_double_dash(arguments, options, command):
    assert split_command(arguments) == (options, command)


def test_version(cli):
    result = cli("--version")
    assert (result.rc, result.stdout) == (0, f"tf-preempt {__version__}\n")


def test_module_can_be_run(start_script):
    source = "import runpy, sys\nsys.argv[0] = 'x'\nrunpy.run_module('tf_preempt', run_name='__main__')\n"
    assert start_script(source, "--version").wait(60).stdout == f"tf-preempt {__version__}\n"


def test_help_lists_the_verbs(cli):
    result = cli("--help")
    assert result.rc == 0
    assert [verb for verb in ("demo", "drill", "launch", "run") if f"\n    {verb} " in result.stdout] == [
        "demo",
        "drill",
        "launch",
        "run",
    ]


@pytest.mark.parametrize("verb", ["launch", "run"])
def test_help_of_a_verb_has_its_options_and_an_example(cli, verb):
    result = cli(verb, "--help")
    assert result.rc == 0
    assert "--stop-timeout S" in result.stdout
    assert f"Example: tf-preempt {verb} " in result.stdout
    assert "The exit status is that of " in result.stdout


MODULES_AFTER = """
import sys
sys.argv[0] = "tf-preempt"
from tf_preempt.cli.main import main
try:
    main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def test_help_imports_no_verb_and_nothing_heavy(start_script):
    modules = start_script(MODULES_AFTER, "--help").wait(60).stderr.split()
    assert not [name for name in modules if name.startswith("tf_preempt.cli.cmd_")]
    assert not {"tensorflow", "keras", "numpy", "requests", "rich"} & set(modules)


@pytest.mark.parametrize("verb", ["launch", "run"])
def test_starting_programs_imports_nothing_heavy(start_script, verb):
    modules = start_script(MODULES_AFTER, verb, "--", "true").wait(60).stderr.split()
    assert f"tf_preempt.cli.cmd_{verb}" in modules
    assert not {"tensorflow", "keras", "numpy", "requests", "rich"} & set(modules)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["launch", "--help"], ["run", "--", "true"]]
)
def test_start_takes_less_than_0_3_seconds(start_script, arguments):
    # The processor's time, the best of three: what other processes do meanwhile is not this program's.
    source = (
        "import os, sys\nfrom tf_preempt.cli.main import main\ntry:\n    main()\n"
        "finally:\n    print('took', sum(os.times()[:2]), file=sys.stderr)\n"
    )
    runs = [start_script(source, *arguments).wait(60).stderr for _ in range(3)]
    assert min(float(run.rsplit("took ", 1)[1]) for run in runs) < 0.3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "VERB"),
        (["fly"], "invalid choice: 'fly'"),
        (["--fly"], "VERB"),
        (["--vers"], "VERB"),
        (["run"], "no command was given; the command goes behind --"),
        (["run", "--"], "no command was given"),
        (["launch", "--workers", "2"], "no command was given"),
        (
            ["run", "python", "train.py"],
            "python train.py; the command goes behind --, for example: tf-preempt run --",
        ),
        (["run", "--fly", "--", "true"], "unrecognized arguments: --fly"),
        (["run", "--max-rest", "3", "--", "true"], "unrecognized arguments: --max-rest 3"),
        (["run", "--max-restarts", "many", "--", "true"], "--max-restarts: 'many' is not a whole number"),
        (
            ["run", "--backoff-initial", "-1", "--", "true"],
            "--backoff-initial: '-1' is not a number of seconds",
        ),
        (["run", "--restart-exit-codes", "0", "--", "true"], "--restart-exit-codes: '0' is not a list"),
        (["run", "--max-no-progress", "0", "--", "true"], "--max-no-progress: '0'"),
        (["launch", "--workers", "0", "--", "true"], "--workers: '0'"),
        (["launch", "--stop-timeout", "x", "--", "true"], "--stop-timeout: 'x'"),
        (["run", "--backoff-initial", "5", "--backoff-max", "2", "--", "true"], "backoff_max_s=2.0"),
    ],
)
def test_wrong_command_line_is_status_2_and_says_what_is_wrong(cli, arguments, said):
    result = cli(*arguments)
    assert result.rc == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("verb", ["launch", "run"])
def test_command_that_is_not_there_is_status_127_and_named_once(cli, verb):
    result = cli(verb, "--", "no-such-program", "--flag")
    assert result.rc == 127
    assert result.stderr.startswith("tf-preempt: the command 'no-such-program' was not found")
    assert "HINT: " in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("verb", ["launch", "run"])
def test_command_that_cannot_be_executed_is_status_126(cli, tmp_path, verb):
    (tmp_path / "train.py").write_text("")
    assert cli(verb, "--", "./train.py").rc == 126


def test_error_of_this_package_is_one_message_and_status_1(cli):
    result = cli("launch", "--host", "192.0.2.1", "--", "true")
    assert result.rc == 1
    assert result.stderr.startswith("tf-preempt: no port can be had on host='192.0.2.1'")
    assert "Traceback" not in result.stderr


def test_verbosity_of_absl_counts(cli):
    quiet = cli("--verbosity=-1", "run", "--", "true")
    loud = cli("run", "--verbosity=0", "--", "true")
    assert (quiet.rc, quiet.stderr) == (0, "")
    assert loud.stderr == "tf-preempt: not restarting: exit status 0 = finished\n"
