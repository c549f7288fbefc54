import functools
import json
import sys

import pytest

from tf_preempt.errors import ConfigError, LaunchError
from tf_preempt.testing.train_function import read_function, write_function

READ = (
    "import sys\n"
    "from tf_preempt.testing.train_function import read_function\n"
    "read_function(sys.argv[1])('there')\n"
)


def trained(directory, times=1):
    print("trained in", *[directory] * times)


def test_function_of_this_file_is_called_in_another_process(tmp_path, run_script):
    path = str(tmp_path / "f.json")
    write_function(trained, path)
    result = run_script(READ, path)
    assert (result.rc, result.stdout) == (0, "trained in there\n"), result.stderr


def test_partial_of_a_partial_keeps_its_arguments(tmp_path, run_script):
    path = str(tmp_path / "f.json")
    write_function(functools.partial(functools.partial(trained, times=3), times=2), path)
    assert run_script(READ, path).stdout == "trained in there there\n"


def test_function_of_a_script_does_not_run_the_script_again(tmp_path, run_script):
    path = str(tmp_path / "f.json")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from tf_preempt.testing.train_function import write_function\n"
        "def mine(directory):\n"
        "    print('mine', directory)\n"
        "if __name__ == '__main__':\n"
        "    write_function(mine, sys.argv[1])\n"
        "    print('written')\n"
    )
    assert run_script(script, path).stdout == "written\n"
    assert run_script(READ, path).stdout == "mine there\n"


@pytest.mark.parametrize("function", [lambda directory: None, functools.partial(trained, times=lambda: 1)])
def test_function_that_cannot_be_handed_over_is_named(function, tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)train_fn=.*HINT: expected a function at the top level"):
        write_function(function, str(tmp_path / "f.json"))


def test_module_that_is_known_by_its_name_is_imported_and_not_loaded_twice(tmp_path):
    path = str(tmp_path / "f.json")
    write_function(functools.partial(print, "x"), path)
    before = set(sys.modules)
    assert read_function(path).func is print
    assert set(sys.modules) == before


def test_another_module_of_the_same_name_is_not_taken_for_it(tmp_path, run_script):
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "training.py").write_text(f"def train(directory):\n    print({folder!r})\n")
    path = tmp_path / "f.json"
    run_script(
        "import sys\n"
        "sys.path.insert(0, 'one')\n"
        "import training\n"
        "from tf_preempt.testing.train_function import write_function\n"
        "write_function(training.train, 'f.json')\n"
    )
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "sys_path": [str(tmp_path / "other")]}))
    assert run_script(READ, str(path)).stdout == "one\n"


def test_file_that_is_no_module_is_an_error(tmp_path):
    path = tmp_path / "f.json"
    write_function(trained, str(path))
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "module": "nowhere_to_be_found", "file": str(tmp_path / "x.txt")}))
    with pytest.raises(LaunchError, match="'nowhere_to_be_found' of train_fn cannot be loaded"):
        read_function(str(path))
