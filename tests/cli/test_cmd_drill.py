import argparse
import json
import os
import pathlib
import re
import signal
import sys
import xml.etree.ElementTree as ElementTree

import psutil
import pytest

import tf_preempt.testing.drill.drill as drill_module
from tf_preempt.cli import cmd_drill
from tf_preempt.testing.drill.options import DrillOptions
from tf_preempt.testing.drill.outcome import Outcome, Verdict

DRILLED = pathlib.Path(__file__).parent / "drill" / "scripts" / "drilled.py"
SAVE_EVERY = 5  # steps, in that program


@pytest.fixture
def drill(start_cli, tmp_path):
    """Runs a drill of a Python program: a file's path or, with a line break, its text."""

    def run(program, *options, arguments=()):
        if "\n" in str(program):
            (tmp_path / "program.py").write_text(program)
            program = tmp_path / "program.py"
        (tmp_path / "temporary").mkdir()
        environ = {"TMPDIR": str(tmp_path / "temporary"), "CUDA_VISIBLE_DEVICES": "-1"}
        command = [sys.executable, str(program), *arguments]
        return start_cli("drill", *options, "--", *command, env=environ).wait(200)

    return run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kills", "0"], "'0' is not a whole number of 1 or more"),
        (["--seed", "x"], "'x' is not a whole number of 0 or more"),
        (["--workers", "0"], "'0' is not a whole number of 1 or more"),
        (["--signals", "TERM,HUP"], "signals=('TERM', 'HUP') "),
        (["--signals", ""], "signals=('',) "),
        (["--stall-timeout", "0"], "--stall-timeout 0: expected more than 0 seconds"),
        (["--directory", "gs://bucket/drill"], "gs://bucket/drill is a URL"),
        (["--directory", "/dev/null/below"], "--directory /dev/null/below cannot be written to"),
        (["--junit", "/dev/null/x.xml"], "--junit /dev/null/x.xml cannot be written"),
        (["--junit", "/"], "--junit / cannot be written"),
    ],
)
def test_wrong_usage_is_named_and_nothing_is_started(cli, options, words):
    result = cli("drill", *options, "--", sys.executable, "-c", "print('started')")
    assert result.rc == 2
    assert words in result.stderr
    assert result.stdout == ""


def test_command_is_wanted(cli):
    result = cli("drill", "--kills", "1")
    assert result.rc == 2
    assert "no command was given; the command goes behind --" in result.stderr


def test_command_that_does_not_exist(cli):
    result = cli("drill", "--", "no-such-command")
    assert result.rc == 127
    assert "the command 'no-such-command' was not found" in result.stderr


def test_help_does_not_import_tensorflow(start_script):
    result = start_script(
        "import sys\n"
        "from tf_preempt.cli.main import main\n"
        "try:\n"
        "    main(['tf-preempt', 'drill', '--help'])\n"
        "finally:\n"
        "    print(sorted({'tensorflow', 'keras', 'numpy', 'rich'} & set(sys.modules)))\n"
    ).wait(30)
    assert "--trust-deterministic" in result.stdout
    assert "The exit status is 0 if all is bit-identical" in result.stdout
    assert result.stdout.endswith("[]\n")


def test_program_that_fails_is_shown_with_whose_error_it_was(drill, tmp_path):
    result = drill(
        "import sys\nprint('about to fail')\nraise KeyError('mine')\n",
        "--json",
        "--junit",
        str(tmp_path / "drill.xml"),
    )
    assert result.rc == 3
    for words in (
        "the undisturbed training failed",
        "KeyError, raised in the program (program.py, line 3)",
        "about to fail",
    ):
        assert words in result.stderr
    found = json.loads(result.stdout)
    assert (found["format"], found["verdict"], found["seed"]) == (1, "failed", 0)
    assert "KeyError, raised in the program (program.py, line 3)" in found["error"]
    (suite,) = ElementTree.parse(tmp_path / "drill.xml").getroot()
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")
    assert os.path.isdir(found["directory"]), "the logs are kept after a failure"


def test_program_without_tf_preempt_is_told_what_to_add(drill):
    result = drill("print('trained')\n")
    assert result.rc == 3
    assert "made no checkpoint in " in result.stderr
    assert "HINT: give fit callbacks=[tf_preempt.callbacks.PreemptionCheckpoint" in result.stderr
    assert "Traceback" not in result.stderr


def outcome(verdict, root):
    return Outcome(options=DrillOptions(command=["x"]), verdict=verdict, steps=6, commits=2, directory=root)


@pytest.fixture
def drilled(monkeypatch, tmp_path, capsys):
    """The verb in this process, on a drill that comes out as the test wants: status, output, errors."""
    monkeypatch.setattr(cmd_drill, "make_work_directory", lambda *_, **__: str(tmp_path / "root"))

    def run(verdict, *options, ends=lambda: None):
        (tmp_path / "root").mkdir()

        def perform(*_, directory, **__):
            ends()
            return outcome(verdict, directory)

        monkeypatch.setattr(drill_module, "perform", perform)
        parser = argparse.ArgumentParser()
        cmd_drill.add_arguments(parser)
        args = parser.parse_args(options)
        args.command = ["x"]
        status = cmd_drill.run(args)
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("verdict", "status"), [(Verdict.IDENTICAL, 0), (Verdict.DIFFERENT, 1)])
def test_verdict_stays_if_the_junit_file_cannot_be_written_at_the_end(verdict, status, drilled, tmp_path):
    folder = tmp_path / "reports"
    folder.mkdir()
    found, output, errors = drilled(verdict, "--junit", str(folder / "x.xml"), ends=folder.rmdir)
    assert found == status
    assert verdict.value in output.lower()
    assert f"--junit {folder}/x.xml cannot be written" in errors


def test_junit_file_that_was_there_is_whole_until_the_verdict_comes(drilled, tmp_path):
    path, seen = tmp_path / "x.xml", []
    path.write_text("the last one's")
    drilled(Verdict.IDENTICAL, "--junit", str(path), ends=lambda: seen.append(path.read_text()))
    assert seen == ["the last one's"]
    assert ElementTree.parse(path).getroot().tag == "testsuites"


@pytest.mark.parametrize(
    ("verdict", "options", "kept"),
    [
        (Verdict.IDENTICAL, [], False),
        (Verdict.IDENTICAL, ["--directory", "x"], True),
        (Verdict.DIFFERENT, [], True),
    ],
)
def test_json_names_the_directory_only_where_it_is_kept(verdict, options, kept, drilled, tmp_path):
    _, output, _ = drilled(verdict, "--json", *options)
    root = tmp_path / "root"
    assert json.loads(output)["directory"] == (str(root) if kept else None)
    assert root.exists() is kept


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_ends_it_with_its_processes_and_its_files(start_cli, tmp_path, signum, status):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    source = f"import os, time; open(f'{tmp_path}/up-{{os.getpid()}}', 'w').close(); time.sleep(120)"
    command = [sys.executable, "-c", source]
    script = start_cli("drill", "--workers", "2", "--", *command, env={"TMPDIR": str(temporary)})
    script.wait_for("training undisturbed", 30)
    process = psutil.Process(script.pid)
    while len(list(tmp_path.glob("up-*"))) < 2:
        assert psutil.wait_procs([process], timeout=0.02)[0] == [], "it goes on"
    children = process.children(recursive=True)
    assert len(children) >= 4, "run, launch and two workers"
    script.process.send_signal(signum)
    result = script.wait(30)
    assert result.rc == status
    assert "Traceback" not in result.stderr
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("way", "causes", "cure"),
    [
        pytest.param(
            "numpy",
            ["unseeded"],
            "HINT: keras.utils.set_random_seed(1)",
            marks=pytest.mark.exhaustive,  # its cause alone is new: tests/testing/drill/test_causes.py has it
        ),
        (
            "op",
            ["unseeded", "nondeterministic_op"],
            "HINT: tf.config.experimental.enable_op_determinism()",
        ),
    ],
)
def test_program_that_never_gives_the_same_is_told_so_first(way, causes, cure, drill, tmp_path):
    result = drill(DRILLED, "--kills", "1", "--junit", str(tmp_path / "x.xml"), arguments=[way])
    assert result.rc == 1, result.stderr
    assert "NOT REPEATABLE: two undisturbed trainings did not end alike" in result.stdout
    assert cure in result.stdout
    assert re.search(
        r"^  weights sequential/dense/kernel: \d+ of 48 elements, by up to ", result.stdout, re.M
    )
    assert "interruption(s), seed" not in result.stdout, "the disturbed training is left out"
    (suite,) = ElementTree.parse(tmp_path / "x.xml").getroot()
    assert [suite.get(name) for name in ("failures", "skipped")] == ["1", "1"]
    found = re.findall(r"^  likely: (.*)$", result.stdout, re.MULTILINE)
    assert len(found) == len(causes)


def test_step_that_draws_with_a_stateful_op_is_found(drill):
    result = drill(
        DRILLED,
        *("--kills", "1", "--signals", "term", "--seed", "3", "--trust-deterministic", "--json"),
        arguments=["step"],
    )
    assert result.rc == 1, result.stderr
    found = json.loads(result.stdout)
    assert found["verdict"] == "different"
    (cause,) = found["likely_causes"]
    assert cause["name"] == "stateful_random_op"
    (place,) = cause["found"]
    assert re.match(r"RandomStandardNormal .*drilled\.py:\d+$", place)
    assert place in cause["text"]
    assert place in pathlib.Path(cause["log"]).read_text()
    (sent,) = found["sent"]
    assert (sent["signal"], sent["struck"], found["kills_made"], found["kills_missed"]) == (
        "SIGTERM",
        True,
        1,
        0,
    )
    differing = {one["name"]: one for one in found["differences"]}
    kernel = differing["sequential/dense/kernel"]
    assert kernel["group"] == "weights"
    assert kernel["max_abs"] > 0
    assert kernel["max_ulp"] > 0
    assert "seeds" not in {one["group"] for one in found["differences"]}
    # Alike up to the interruption, which takes effect a few steps after it was sent, and not from then on.
    last_alike, first_unlike = found["last_identical_step"] or 0, found["first_different_step"]
    assert sent["after_step"] - SAVE_EVERY <= last_alike < first_unlike
    assert sent["after_step"] < first_unlike
