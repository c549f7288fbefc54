import logging
import os

import pytest

from tf_preempt.goodput.step_file import Place, StepFile, read_places


def test_last_step_of_each_worker_is_read_back(tmp_path):
    path = str(tmp_path / "steps")
    files = [StepFile(path, worker=worker, fit=worker) for worker in (0, 1)]
    files[0].write(123456)
    files[0].write(7)
    files[1].write(8)
    assert read_places(path) == {0: Place(os.getpid(), 0, 7), 1: Place(os.getpid(), 1, 8)}
    for file in files:
        file.close()
        file.close()


def test_other_files_and_a_worker_that_has_not_written_are_left_out(tmp_path):
    file = StepFile(str(tmp_path / "steps"), worker=0, fit=0)
    file.write(1)
    file.close()
    line = (tmp_path / "steps.0").read_text()
    contents = {"steps.0": "", "steps.1": "7 0 1\n", "steps": line, "steps.old": line, "stepsy.1": line}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    assert read_places(str(tmp_path / "steps")) == {}


@pytest.mark.parametrize("environ", [{}, {"TF_PREEMPT_STEP_FILE": ""}])
def test_nothing_is_written_where_nobody_asks(environ):
    assert StepFile.from_environ(environ, worker=0, fit=0) is None


def test_variable_names_the_file(tmp_path):
    file = StepFile.from_environ({"TF_PREEMPT_STEP_FILE": str(tmp_path / "s")}, worker=3, fit=1)
    file.write(2)
    file.close()
    assert read_places(str(tmp_path / "s")) == {3: Place(os.getpid(), 1, 2)}


def test_file_that_cannot_be_written_is_said_once_and_ends_nothing(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="tf_preempt"):
        file = StepFile(str(tmp_path / "none" / "s"), worker=0, fit=0)
        file.write(1)
        file.write(2)
    assert len(caplog.records) == 1
    assert "from TF_PREEMPT_STEP_FILE) cannot be written" in caplog.text
