import os
import subprocess
import sys

from tf_preempt.launch import _follow_parent


def test_program_is_not_started_when_the_parent_has_died_meanwhile(tmp_path):
    command = [sys.executable, "-I", "-S", _follow_parent.__file__, "1", "touch", str(tmp_path / "started")]
    assert subprocess.run(command, timeout=60).returncode == 143
    assert not (tmp_path / "started").exists()


SHOW_HANDLER_AT_START = """
import os, signal, sys
if sys.argv[1] == "ignored":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from tf_preempt.launch import _follow_parent
os.execvp = lambda *_: print(signal.getsignal(signal.SIGINT).name)
_follow_parent.main(["", str(os.getppid()), "program"])
"""


def test_ctrl_c_ends_the_program_to_be_without_a_traceback(run_script):
    assert run_script(SHOW_HANDLER_AT_START, "default").stdout == "SIG_DFL\n"


def test_ignored_ctrl_c_stays_ignored(run_script):
    assert run_script(SHOW_HANDLER_AT_START, "ignored").stdout == "SIG_IGN\n"


def test_program_takes_the_place_of_the_script():
    command = [sys.executable, "-I", "-S", _follow_parent.__file__, str(os.getpid()), "sh", "-c", "echo $$"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0] == f"{process.pid}\n"
