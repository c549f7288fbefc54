import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from tf_preempt.errors import ConfigError, LaunchError
from tf_preempt.launch.process_tree import ProcessTree, check_command

# Says when it is ready; then waits for the end.
WAIT = "import os, signal, time\nprint(os.getpid(), flush=True)\ntime.sleep(120)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT
# Starts another program, gives its process id, and waits itself.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], **eval(sys.argv[2]), stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(120)
"""


def python(source, *arguments):
    return [sys.executable, "-c", source, *arguments]


@pytest.fixture
def start():
    trees = []

    def start(command, **environ):
        trees.append(ProcessTree(command, environ={**os.environ, **environ}, stdout=subprocess.PIPE))
        return trees[-1]

    yield start
    for tree in trees:
        tree.kill()
        tree.wait()
        tree.stdout.close()


def printed_process(tree):
    return psutil.Process(int(tree.stdout.readline()))


@pytest.mark.parametrize(
    ("source", "returncode"),
    [("", 0), ("raise SystemExit(42)", 42), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_end_of_the_program_is_told_as_subprocess_does(start, source, returncode):
    tree = start(python(source))
    assert tree.wait() == returncode
    assert tree.returncode == returncode
    assert tree.members() == []


def test_program_is_told_its_arguments_and_environment_unchanged(start):
    tree = start(
        python("import os, sys; print(sys.argv[1:], os.environ['COLOUR'])", "--", "a b", ""), COLOUR="red"
    )
    assert tree.stdout.readline() == b"['--', 'a b', ''] red\n"


def test_program_ignores_no_signal_that_a_shell_would_not(start):
    tree = start(["sh", "-c", "grep SigIgn /proc/self/status"])
    assert int(tree.stdout.readline().split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_program_has_a_session_of_its_own(start):
    tree = start(python(WAIT))
    printed_process(tree)
    assert os.getsid(tree.pid) == tree.pid


def test_signal_goes_to_the_program_only(start, gone):
    tree = start(python(PARENT, WAIT, "{}"))
    child = printed_process(tree)
    tree.send_signal(signal.SIGTERM)
    assert tree.wait() == -signal.SIGTERM
    assert child.is_running()
    tree.stop(10)
    assert gone(child)


def test_signal_to_a_program_that_has_ended_goes_nowhere(start):
    tree = start(python(""))
    tree.wait()
    tree.send_signal(signal.SIGKILL)
    tree.signal_all(signal.SIGKILL)
    tree.stop(0)
    assert tree.returncode == 0


@pytest.mark.parametrize(
    "options",
    ["{}", "{'start_new_session': True}", "{'env': {}}"],
    ids=["same group", "own session", "empty environment"],
)
def test_child_is_found_and_stopped_with_its_parent(start, options, gone):
    tree = start(python(PARENT, WAIT, options))
    child = printed_process(tree)
    assert {process.pid for process in tree.members()} == {tree.pid, child.pid}
    tree.stop(10)
    assert gone(child)
    assert tree.wait() == -signal.SIGTERM


def test_child_that_has_lost_its_parent_is_found(start, gone):
    tree = start(python(PARENT, WAIT, "{'start_new_session': True}"))
    child = printed_process(tree)
    os.kill(tree.pid, signal.SIGKILL)
    assert tree.wait() == -signal.SIGKILL
    assert [process.pid for process in tree.members()] == [child.pid]
    tree.stop(10)
    assert gone(child)


def test_who_ignores_sigterm_is_killed_after_the_time_out(start, gone):
    tree = start(python(PARENT, STUBBORN, "{}"))
    child = printed_process(tree)
    tree.stop(0.2)
    assert gone(child)
    assert tree.members() == []


def test_who_leaves_in_time_is_not_killed(start):
    tree = start(
        python("import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n" + WAIT),
    )
    printed_process(tree)
    tree.stop(30)
    assert tree.wait() == 7


def test_tree_within_a_tree_is_part_of_both(start):
    outer = start(python(PARENT, WAIT, "{}"))
    outer_child = printed_process(outer)
    inner = start(
        python(WAIT), **{"TF_PREEMPT_PROCESS_TREE": outer_child.environ()["TF_PREEMPT_PROCESS_TREE"]}
    )
    printed_process(inner)
    assert inner.pid in {process.pid for process in outer.members()}
    assert {process.pid for process in inner.members()} == {inner.pid}


def test_other_processes_are_left_alone(start):
    first, second = start(python(WAIT)), start(python(WAIT))
    printed_process(first)
    second_process = printed_process(second)
    first.stop(10)
    assert second_process.is_running()
    assert second.returncode is None


def test_end_can_be_waited_for_while_another_thread_sends_signals(start):
    tree = start(python(WAIT))
    printed_process(tree)
    codes = []
    waiters = [threading.Thread(target=lambda: codes.append(tree.wait())) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    tree.send_signal(signal.SIGTERM)
    for waiter in waiters:
        waiter.join(10)
    assert codes == [-signal.SIGTERM] * 3


@pytest.mark.parametrize("program", ["no-such-program-anywhere", "./no/such/program"])
def test_program_that_is_not_there_is_named(program):
    with pytest.raises(LaunchError, match=f"'{program}' was not found") as caught:
        ProcessTree([program], environ={"PATH": "/bin"})
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_program_is_looked_for_in_the_path_that_it_will_have(tmp_path):
    program = tmp_path / "own-program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    check_command(["own-program"], environ={"PATH": str(tmp_path)})
    with pytest.raises(LaunchError, match=r"PATH='/bin'"):
        check_command(["own-program"], environ={"PATH": "/bin"})


def test_file_that_is_no_program_is_told_apart(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(LaunchError, match=r"not an executable file(.|\n)*HINT: .*python") as caught:
        ProcessTree([str(script)], environ={})
    assert isinstance(caught.value.__cause__, PermissionError)


def test_program_that_cannot_be_executed_after_all_ends_as_in_a_shell(start, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert start([str(script)]).wait() == 127


def test_no_command_is_an_error():
    with pytest.raises(ConfigError, match="no command"):
        ProcessTree([], environ={})


def test_program_gets_sigterm_when_who_started_it_is_killed(start_script, gone):
    starter = start_script(
        """
import os, sys, time
from tf_preempt.launch.process_tree import ProcessTree
ProcessTree([sys.executable, "-c", sys.argv[1]], environ=os.environ)
time.sleep(120)
""",
        "import signal, sys, time\n"
        "def leave(*_):\n"
        "    print('got SIGTERM', flush=True)\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "import os; print('pid', os.getpid(), flush=True)\n"
        "time.sleep(120)\n",
    )
    program = psutil.Process(int(starter.wait_for(r"pid (\d+)\n", 30)[1]))
    starter.process.kill()
    starter.process.wait(10)
    assert gone(program)
    assert "got SIGTERM" in starter.stdout
