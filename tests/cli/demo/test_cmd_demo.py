import os
import signal

import psutil
import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "0"], "invalid choice: 0"),
        (["--workers", "5"], "invalid choice: 5"),
        (["--workers", "two"], "invalid int value: 'two'"),
        (["--epochs", "0"], "'0' is not a whole number of 1 or more"),
        (["--seed", "-1"], "'-1' is not a whole number of 0 or more"),
        (["--seed", str(2**32)], f"seed={2**32} "),
        (["--directory", "gs://bucket/demo"], "gs://bucket/demo is a URL"),
        (["--", "python"], "unrecognized arguments"),
    ],
)
def test_wrong_usage_is_named_and_nothing_is_started(cli, tmp_path, arguments, words):
    before = set(os.listdir(tmp_path))
    result = cli("demo", *arguments, env={"TMPDIR": str(tmp_path)})
    assert result.rc == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert {name for name in os.listdir(tmp_path) if not name.startswith("script-")} <= before


def test_directory_that_cannot_be_made_is_named(cli, tmp_path):
    (tmp_path / "file").touch()
    result = cli("demo", "--json", "--directory", str(tmp_path / "file" / "below"))
    assert result.rc == 1
    assert f"--directory {tmp_path / 'file' / 'below'} cannot be written to" in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_packages_are_named_with_the_cure(start_script):
    result = start_script(
        "import sys\n"
        "sys.modules['sklearn'] = None\n"
        "from tf_preempt.cli.demo import data\n"
        "data.check_extras.__defaults__ = (lambda name: None if name == 'sklearn' else 1,)\n"
        "from tf_preempt.cli.main import main\n"
        "main(['tf-preempt', 'demo'])\n"
    ).wait(30)
    assert result.rc == 1
    assert "the demo needs scikit-learn" in result.stderr
    assert "HINT: pip install '.[demo]' in the checkout" in result.stderr


def test_help_does_not_import_tensorflow(start_script):
    result = start_script(
        "import sys\n"
        "from tf_preempt.cli.main import main\n"
        "try:\n"
        "    main(['tf-preempt', 'demo', '--help'])\n"
        "finally:\n"
        "    print(sorted({'tensorflow', 'keras', 'numpy', 'rich'} & set(sys.modules)))\n"
    ).wait(30)
    assert "--workers" in result.stdout
    assert result.stdout.endswith("[]\n")


@pytest.mark.parametrize(
    ("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_ends_it_with_its_processes_and_its_files(start_cli, tmp_path, signum, status):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = start_cli("demo", env={"TMPDIR": str(temporary)})
    script.wait_for("writing 1,797 digits", 30)
    children = psutil.Process(script.pid).children(recursive=True)
    script.process.send_signal(signum)
    result = script.wait(30)
    assert result.rc == status
    assert "Traceback" not in result.stderr
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert list(temporary.iterdir()) == []
