#!/usr/bin/env python3
"""A real, private, multi-node Slurm cluster on one machine, for integration tests.

Verbs
    start        build the runtime directory, start munged, slurmctld and N slurmd, wait until idle
    stop         cancel all jobs, end every process this sandbox started, remove the directory
    status       say what runs (exit status 0: all up, 1: partly up, 3: not running)
    env          print the `export` lines a client shell needs
    exec CMD...  run CMD as a client of the sandbox
    fail-node N  kill -9 a node's slurmd and everything it runs
                 (--daemon-only: slurmd alone; --freeze: SIGSTOP them all, as a hung node)
    start-node N bring a failed node back

Nothing system-wide is touched: own slurm.conf, own munge key and socket, own state directory, own
ports, loopback addresses only, no systemd, no cgroups, no accounting database.  The directory is
$SLURM_SANDBOX_DIR (default /tmp/slurm-sandbox).  Two sandboxes with different directories can run
side by side.  Needs: slurmctld, slurmd, the client commands, munged (Debian: slurm-wlm, munge) and a
slurmd built with --enable-multiple-slurmd (Debian's is).  Standard library only.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import pwd
import random
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import uuid
from pathlib import Path

DEFAULT_DIR = "/tmp/slurm-sandbox"
MARKER = ".slurm-sandbox"  # a directory without this file is never removed
LOOPBACK = "127.0.0.1"
SBIN = "/usr/sbin:/usr/local/sbin:/sbin"

EX_PARTIAL, EX_USAGE, EX_NOT_RUNNING, EX_UNAVAILABLE = 1, 2, 3, 69


class SandboxError(Exception):
    """A failure to report in one line, with the exit status to leave."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


def log(*words):
    print("slurm-sandbox:", *words, file=sys.stderr, flush=True)


def tool(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":" + SBIN)


# ------------------------------------------------------------------------------------ processes


def proc_stat(pid):
    """(state, ppid, starttime) of a process, or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], int(fields[1]), int(fields[19])


def proc_environ(pid):
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.split(b"=", 1) for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(k): os.fsdecode(v) for k, v in pairs}


def all_pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def alive(pid, starttime):
    """Does this very process still run?  A zombie, or another process with a reused pid, does not."""
    found = proc_stat(pid)
    return bool(found and found[0] not in "ZX" and found[2] == starttime)


def send(pid, starttime, signum):
    """Signal exactly this process (a pidfd closes the window in which the pid could be reused)."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    except (OSError, AttributeError):  # an old kernel, or a filter that knows no pidfd
        fd = None
    try:
        if not alive(pid, starttime):
            return False
        if fd is None:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(fd, signum)
        return True
    except OSError:
        return False
    finally:
        if fd is not None:
            os.close(fd)


def wait_until(test, timeout, interval=0.05):
    end = time.monotonic() + timeout
    while True:
        value = test()
        if value or time.monotonic() >= end:
            return value
        time.sleep(interval)


def end_processes(procs, grace=5.0):
    """SIGTERM, wait, SIGKILL.  procs: [(pid, starttime)]."""
    for pid, start in procs:
        send(pid, start, signal.SIGTERM)
        send(pid, start, signal.SIGCONT)  # one that fail-node --freeze stopped
    if not wait_until(lambda: not any(alive(*p) for p in procs), grace):
        for pid, start in procs:
            send(pid, start, signal.SIGKILL)
        wait_until(lambda: not any(alive(*p) for p in procs), 5)
    return [p for p in procs if alive(*p)]


# -------------------------------------------------------------------------------------- sandbox


class Sandbox:
    def __init__(self, directory=None):
        self.dir = Path(os.path.abspath(directory or os.environ.get("SLURM_SANDBOX_DIR") or DEFAULT_DIR))
        self.conf = self.dir / "etc" / "slurm.conf"
        self.state_file = self.dir / MARKER
        self.state = None
        if self.state_file.exists():
            try:
                self.state = json.loads(self.state_file.read_text())
            except ValueError:
                self.state = {}

    # ---- small helpers

    def lock(self):
        """One verb at a time per directory.  The lock lies beside the directory, which comes and goes."""
        self.dir.parent.mkdir(parents=True, exist_ok=True)
        path = f"{self.dir}.lock"
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
            except FileNotFoundError:
                pass
            os.close(fd)  # another verb removed it while we waited

    def unlock(self, fd):
        if not self.dir.exists():
            os.unlink(f"{self.dir}.lock")
        os.close(fd)

    def save(self):
        temp = self.state_file.with_suffix(".new")
        temp.write_text(json.dumps(self.state, indent=1))
        temp.replace(self.state_file)

    def client_env(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SALLOC_"))}
        env["SLURM_CONF"] = str(self.conf)
        return env

    def client(self, *argv, timeout=20):
        """Run one Slurm client command quietly; (returncode, stdout)."""
        try:
            done = subprocess.run(
                [tool(argv[0]), *argv[1:]], env=self.client_env(), timeout=timeout, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return 124, ""
        return done.returncode, done.stdout

    def pidfile(self, name):
        return self.dir / "run" / f"{name}.pid"

    def daemon(self, name):
        """(pid, starttime) of one of our daemons if it runs, else None."""
        try:
            pid, start = map(int, self.pidfile(name).read_text().split())
        except (OSError, ValueError):
            return None
        return (pid, start) if alive(pid, start) else None

    def gpus(self):
        """Number of GPUs of each node."""
        numbers = [int(number) for number in self.state["options"]["gpus_per_node"].split(",")]
        return numbers if len(numbers) > 1 else numbers * len(self.nodes())

    def nodes(self):
        options = self.state["options"]
        return [f"{options['prefix']}{options['first'] + i}" for i in range(options["nodes"])]

    def daemon_names(self):
        return ["munged", "slurmctld", *(f"slurmd.{n}" for n in self.nodes())]

    def node_of(self, pid):
        """Which of our nodes this process belongs to: a slurmstepd, or what one started; else None.

        A slurmstepd writes its title over its environment, but holds our private log of its node
        open.  A task carries our private SLURM_CONF *and* SLURMD_NODENAME, which only a slurmd
        sets; a client (the test itself, an salloc shell) has at most the first.
        """
        env = proc_environ(pid)
        if env.get("SLURM_SANDBOX_TAG") == self.state["tag"] and "SLURM_SANDBOX_NODE" in env:
            return env["SLURM_SANDBOX_NODE"]  # slurmd's own child, just forked
        if env.get("SLURM_CONF") == str(self.conf) and "SLURMD_NODENAME" in env:
            return env["SLURMD_NODENAME"]
        try:
            if not os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("slurmstepd"):
                return None
            begin, end = f"{self.dir}/log/slurmd.", ".log"
            for fd in os.listdir(f"/proc/{pid}/fd"):
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
                if target.startswith(begin) and target.endswith(end):
                    return target[len(begin) : -len(end)]
        except OSError:
            pass
        return None

    def step_processes(self, node=None):
        """What our slurmd started and what descends from it: [(pid, starttime)], tasks after their stepd."""
        daemons = {d[0] for d in map(self.daemon, self.daemon_names()) if d}
        table, children, roots = {}, {}, []
        for pid in all_pids():
            found = proc_stat(pid)
            if not found or found[0] in "ZX":
                continue
            table[pid] = found
            children.setdefault(found[1], []).append(pid)
            if pid not in daemons:
                mine = self.node_of(pid)
                if mine is not None and node in (None, mine):
                    roots.append(pid)
        seen, queue = {}, roots
        while queue:
            pid = queue.pop(0)
            if pid not in seen and pid not in daemons and pid not in (os.getpid(), os.getppid()):
                seen[pid] = table[pid][2]
                queue.extend(children.get(pid, []))
        stepd_first = sorted(seen, key=lambda p: not self.is_stepd(p))
        return [(pid, seen[pid]) for pid in stepd_first]

    @staticmethod
    def is_stepd(pid):
        try:
            return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("slurmstepd")
        except OSError:
            return False

    # ---- start

    def choose_ports(self, count):
        """Consecutive TCP ports free on every address, below those that jobs choose for their tasks."""
        for _ in range(200):
            base = random.randint(12_200, 16_383 - count)
            held = []
            try:
                for port in range(base, base + count):
                    sock = socket.socket()
                    held.append(sock)
                    sock.bind(("", port))
            except OSError:
                continue
            else:
                return base
            finally:
                for sock in held:
                    sock.close()
        raise SandboxError("found no run of free ports")

    def namespace_prefix(self, hostname):
        """A command prefix giving a private hostname and a private /etc/hosts, or None if refused."""
        user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
        inner = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'
        return [tool("unshare"), *user, "--uts", "--mount", "--propagation", "slave",
                "sh", "-c", inner, "sh", hostname, str(self.dir / "etc" / "hosts")]  # fmt: skip

    def namespaces_work(self):
        if not tool("unshare") or not tool("hostname"):
            return False
        probe = subprocess.run(
            [*self.namespace_prefix("probe"), "sh", "-c", 'test "$(hostname)" = probe'],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        return probe.returncode == 0

    def write_files(self):
        opt = self.state["options"]
        for sub, mode in (("etc", 0o755), ("run", 0o755), ("log", 0o755), ("munge", 0o700),
                          ("state", 0o700), ("spool", 0o755), ("dev", 0o755)):  # fmt: skip
            path = self.dir / sub
            path.mkdir(exist_ok=True)
            path.chmod(mode)

        # Slurm refuses a munge key that others can read; munged refuses one under 32 bytes.
        key = self.dir / "munge" / "munge.key"
        fd = os.open(key, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400)
        os.write(fd, os.urandom(128))
        os.close(fd)

        # Every node's name means loopback, but only inside the nodes' own mount namespace.
        try:
            hosts = Path("/etc/hosts").read_text()
        except OSError:
            hosts = f"{LOOPBACK} localhost\n"
        names = [*self.nodes(), "sandbox-login"]
        lines = [line for line in hosts.splitlines() if not set(line.split()[1:]) & set(names)]
        lines += [f"{LOOPBACK} {name}" for name in names]
        (self.dir / "etc" / "hosts").write_text("\n".join(lines) + "\n")

        # With NoInAddrAny every listener, srun's included, binds to what gethostname() resolves to.
        try:
            here_is_loopback = socket.gethostbyname(socket.gethostname()).startswith("127.")
        except OSError:
            here_is_loopback = False
        spaces = opt["hostnames"] != "no" and self.namespaces_work()
        if opt["hostnames"] == "yes" and not spaces:
            raise SandboxError("this system refuses the namespaces that --hostnames yes needs")
        self.state["namespaces"] = spaces
        self.state["client_namespace"] = spaces and not here_is_loopback
        loopback_only = here_is_loopback or spaces
        self.state["loopback_only"] = loopback_only
        if not loopback_only:
            log("warning: this host's name is not a loopback address and namespaces are off or refused:",
                "the daemons will listen on all addresses")  # fmt: skip
        elif self.state["client_namespace"]:
            log("note: this host's name is not a loopback address; run srun and salloc through",
                f"`{sys.argv[0]} exec`")  # fmt: skip

        d, port, user = self.dir, self.state["port"], pwd.getpwuid(os.geteuid()).pw_name
        gpus, gres_global = self.gpus(), ""
        if any(gpus):
            gres_global = "GresTypes=gpu\n"
            for i in range(max(gpus)):
                self.fake_device(d / "dev" / f"nvidia{i}")
            (d / "etc" / "gres.conf").write_text("AutoDetect=off\n" + "".join(
                f"NodeName={name} Name=gpu File={d}/dev/nvidia[0-{count - 1}]\n"
                for name, count in zip(self.nodes(), gpus, strict=True) if count
            ))  # fmt: skip
        comm = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n" if loopback_only else ""
        cpus = opt["cpus_per_node"]
        nodes = "\n".join(
            f"NodeName={name} NodeHostname=localhost NodeAddr={LOOPBACK} Port={port + i} CPUs={cpus} "
            f"Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 "
            f"RealMemory={opt['memory']}" + (f" Gres=gpu:{gpus[i - 1]}" if gpus[i - 1] else "")
            for i, name in enumerate(self.nodes(), 1)
        )
        select = "CR_Core_Memory" if opt["consume_memory"] else "CR_Core"
        self.conf.write_text(f"""\
# Written by slurm_sandbox.py; thrown away by its stop verb.
ClusterName=sandbox
SlurmctldHost=localhost({LOOPBACK})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# cred_expire also sets how long a requeued job waits before it may start again (Slurm's default: 120 s).
AuthInfo=socket={d}/run/munge.sock,cred_expire={opt["requeue_delay"]}
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/run/own-slurmctld.pid
SlurmdPidFile={d}/run/own-slurmd.%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd.%n.log
SlurmctldDebug=debug
SlurmdDebug=debug
DebugFlags=NO_CONF_HASH
{comm}{gres_global}
# Nothing that needs root, cgroups, a database or real hardware.
ProctrackType=proctrack/{opt["proctrack"]}
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={d}/log/jobcomp.log
MailProg=/bin/true
PropagateResourceLimits=NONE
# Nodes are what this file says, however small the machine.
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters={select}
# A failed node is noticed soon and comes back by itself.
ReturnToService=2
SlurmdTimeout={opt["slurmd_timeout"]}
MessageTimeout={opt["message_timeout"]}
TCPTimeout=2
KillWait={opt["kill_wait"]}
MinJobAge=3600
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=50000,bf_interval=1
{opt["extra_conf"]}
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE \\
    GraceTime={opt["grace_time"]} MaxTime=INFINITE DefaultTime=60 State=UP
PartitionName=abrupt Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE \\
    GraceTime=0 MaxTime=INFINITE DefaultTime=60 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE DefaultTime=60 State=UP
""")

    @staticmethod
    def fake_device(path):
        """Slurm wants a character or block device behind File= (a regular file leaves the env unset)."""
        if path.exists():
            return
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except OSError:
            path.symlink_to("/dev/null")

    def launch(self, name, argv, extra_env=None, hostname=None):
        if hostname and self.state["namespaces"]:
            argv = [*self.namespace_prefix(hostname), *argv]
        env = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "USER", "LOGNAME", "TZ")}
        env["PATH"] = env.get("PATH", "/usr/bin:/bin") + ":" + SBIN
        env["SLURM_CONF"] = str(self.conf)
        env["SLURM_SANDBOX_TAG"] = self.state["tag"]
        env.update(extra_env or {})
        with open(self.dir / "log" / f"{name}.out", "ab") as out:
            child = subprocess.Popen(
                argv,
                env=env,
                cwd=self.dir,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        found = proc_stat(child.pid)
        self.pidfile(name).write_text(f"{child.pid} {found[2] if found else 0}\n")
        self.children[name] = child
        return child

    def tail(self, name, lines=8):
        text = ""
        for path in (self.dir / "log" / f"{name}.out", self.dir / "log" / f"{name}.log"):
            try:
                text += "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) + "\n"
            except OSError:
                pass
        return text.strip()

    def launch_munged(self):
        m = self.dir / "munge"
        sock = self.dir / "run" / "munge.sock"
        for leftover in (sock, Path(f"{sock}.lock")):
            leftover.unlink(missing_ok=True)
        self.launch("munged", [
            tool("munged"), "--foreground", f"--socket={sock}", f"--key-file={m}/munge.key",
            f"--log-file={m}/munged.log", f"--pid-file={m}/munged.pid", f"--seed-file={m}/munged.seed",
        ])  # fmt: skip

        def answers():
            if self.children["munged"].poll() is not None:
                raise SandboxError("munged ended:\n" + self.tail("munged"))
            if not sock.exists():
                return False
            done = subprocess.run(
                [tool("munge"), "-S", str(sock), "-n"], check=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            return done.returncode == 0

        if not wait_until(answers, 10):
            raise SandboxError("munged does not answer:\n" + self.tail("munged"))

    def launch_slurmctld(self):
        self.launch("slurmctld", [tool("slurmctld"), "-D", "-f", str(self.conf)],
                    hostname="sandbox-login" if self.state["client_namespace"] else None)  # fmt: skip

        def listens():
            if self.children["slurmctld"].poll() is not None:
                raise SandboxError("slurmctld ended:\n" + self.tail("slurmctld"))
            return self.listens(0)

        if not wait_until(listens, 15):
            raise SandboxError("slurmctld does not listen:\n" + self.tail("slurmctld"))

    def launch_slurmd(self, node):
        (self.dir / "spool" / node).mkdir(exist_ok=True)
        self.launch(f"slurmd.{node}", [tool("slurmd"), "-D", "-N", node, "-f", str(self.conf)],
                    {"SLURM_SANDBOX_NODE": node}, hostname=node)  # fmt: skip

    def node_states(self):
        """{node: state} from the controller; empty when it does not answer."""
        code, text = self.client("sinfo", "-h", "-N", "-o", "%N %T")
        if code:
            return {}
        return dict(line.split() for line in text.splitlines() if len(line.split()) == 2)

    def listens(self, offset):
        with socket.socket() as sock:
            return sock.connect_ex((LOOPBACK, self.state["port"] + offset)) == 0

    def wait_ready(self, timeout):
        good = {"idle", "allocated", "mixed", "completing"}
        waiting = [i for i, n in enumerate(self.nodes(), 1) if f"slurmd.{n}" in self.children]

        def ready():
            for name, child in self.children.items():
                if child.poll() is not None:
                    raise SandboxError(f"{name} ended:\n" + self.tail(name))
            # The controller may still hold a restarted node for idle: ask each new slurmd itself first.
            while waiting and self.listens(waiting[0]):
                waiting.pop(0)
            states = {} if waiting else self.node_states()
            return all(states.get(n) in good for n in self.nodes())

        if not wait_until(ready, timeout, 0.1):
            raise SandboxError(
                f"nodes not ready after {timeout} s: {self.node_states()}\n{self.tail('slurmctld')}"
            )

    def start(self, options, force=False, wait=30):
        begun = time.monotonic()
        missing = [
            n for n in ("munged", "munge", "slurmctld", "slurmd", "sinfo", "scontrol", "srun") if not tool(n)
        ]
        if missing:
            raise SandboxError("not installed: " + ", ".join(missing), EX_UNAVAILABLE)
        # slurmstepd's sockets are <dir>/spool/<node>/<node>_<jobid>.<stepid>; a socket's path is short.
        longest = (
            len(f"{self.dir}/spool/")
            + 2 * len(f"{options['prefix']}{options['first'] + options['nodes']}")
            + 24
        )
        if longest > 107:
            raise SandboxError(
                f"{self.dir} is too long a path for the sockets below it ({longest} > 107)", EX_USAGE
            )
        self.children = {}
        running = bool(self.state) and any(map(self.daemon, self.daemon_names()))
        if running and self.state["options"] != options:
            if not force:
                raise SandboxError(
                    f"already running in {self.dir} with other options; stop it first, or --force", EX_USAGE
                )
            self.stop()
            running = False
        if not running:
            if self.state is not None:  # ended without stop: no daemon lives, but tasks may
                self.stop()
            if self.dir.exists() and any(self.dir.iterdir()):
                raise SandboxError(f"{self.dir} exists and is not a sandbox; not touching it", EX_USAGE)
            self.dir.mkdir(parents=True, exist_ok=True)
            self.dir.chmod(0o755)
            self.state = {"options": options, "tag": uuid.uuid4().hex}
            self.state["port"] = self.choose_ports(options["nodes"] + 1)
            self.save()
            self.write_files()
            self.save()
        try:
            if not self.daemon("munged"):
                self.launch_munged()
            if not self.daemon("slurmctld"):
                self.launch_slurmctld()
            for node in self.nodes():
                if not self.daemon(f"slurmd.{node}"):
                    self.launch_slurmd(node)
            self.wait_ready(wait)
        except BaseException:
            if not running:
                log("start failed; logs kept in", f"{self.dir}.failed-log")
                shutil.rmtree(f"{self.dir}.failed-log", ignore_errors=True)
                shutil.copytree(self.dir / "log", f"{self.dir}.failed-log", dirs_exist_ok=True)
                self.stop()
            raise
        launched = ", ".join(self.children) or "nothing (all were up)"
        log(f"ready in {time.monotonic() - begun:.2f} s: {len(self.nodes())} nodes; started {launched}")

    # ---- stop

    def stop(self, keep_logs=False):
        """End everything we started and remove the directory.  Harmless when nothing runs."""
        if self.state is None:
            return
        if self.state.get("options"):
            if self.daemon("slurmctld"):
                code, jobs = self.client("squeue", "-h", "-o", "%A", timeout=10)
                ids = sorted(set(jobs.split())) if code == 0 else []
                if ids:
                    self.client("scancel", *ids, timeout=10)
            # A slurmd leaves its slurmstepd running by design, and they their tasks: end these first.
            for _ in range(20):
                victims = self.step_processes()
                if not victims:
                    break
                for pid, start in victims:
                    send(pid, start, signal.SIGKILL)
                time.sleep(0.05)
            rest = end_processes([d for d in (self.daemon(f"slurmd.{n}") for n in self.nodes()) if d])
            for pid, start in self.step_processes():  # what a slurmd started while it was ending
                send(pid, start, signal.SIGKILL)
            for name in ("slurmctld", "munged"):
                daemon = self.daemon(name)
                if daemon:
                    helpers = [(p, proc_stat(p)) for p in all_pids()]
                    helpers = [(p, st[2]) for p, st in helpers if st and st[1] == daemon[0]]
                    rest += end_processes([daemon])
                    wait_until(lambda: not any(alive(*h) for h in helpers), 2)  # noqa: B023
                    rest += end_processes(helpers)
            wait_until(lambda: not self.step_processes(), 5)
            rest += self.step_processes()
            if rest:
                raise SandboxError(f"these would not end: {rest}")
        if keep_logs and (self.dir / "log").exists():
            shutil.rmtree(f"{self.dir}.log", ignore_errors=True)
            shutil.copytree(self.dir / "log", f"{self.dir}.log")
        if self.state_file.exists():
            shutil.rmtree(self.dir)
        self.state = None

    # ---- the rest

    def status(self, as_json=False):
        if not self.state or not self.state.get("options"):
            print(json.dumps({"running": False}) if as_json else f"not running ({self.dir})")
            return EX_NOT_RUNNING
        daemons = {name: (self.daemon(name) or [None])[0] for name in self.daemon_names()}
        states = self.node_states() if daemons["slurmctld"] else {}
        up = all(daemons.values()) and all(states.get(n) in ("idle", "allocated", "mixed", "completing")
                                           for n in self.nodes())  # fmt: skip
        code = 0 if up else (EX_PARTIAL if any(daemons.values()) else EX_NOT_RUNNING)
        if as_json:
            print(json.dumps({
                "running": any(daemons.values()), "ready": up, "dir": str(self.dir),
                "slurm_conf": str(self.conf), "port": self.state["port"], "daemons": daemons, "nodes": states,
                "namespaces": self.state.get("namespaces"), "options": self.state["options"],
            }))  # fmt: skip
        else:
            for name, pid in daemons.items():
                node = name.partition(".")[2]
                print(f"{name:16} {'pid ' + str(pid) if pid else 'DOWN':12} {states.get(node, '')}".rstrip())
            print(f"SLURM_CONF={self.conf}")
        return code

    def require(self):
        if not self.state or not self.state.get("options"):
            raise SandboxError(f"no sandbox in {self.dir}", EX_NOT_RUNNING)

    def fail_node(self, node, daemon_only=False, freeze=False):
        self.require()
        if node not in self.nodes():
            raise SandboxError(f"no such node: {node}", EX_USAGE)
        daemon = self.daemon(f"slurmd.{node}")
        victims = [] if daemon_only else self.step_processes(node)
        for pid, start in [*([daemon] if daemon else []), *victims]:
            send(pid, start, signal.SIGSTOP if freeze else signal.SIGKILL)
        if not freeze:
            wait_until(lambda: not self.daemon(f"slurmd.{node}"), 5)
        log(f"{node}: {'froze' if freeze else 'killed'} slurmd {daemon[0] if daemon else '(was down)'}",
            f"and {len(victims)} of its processes")  # fmt: skip

    def start_node(self, node, wait=30):
        self.require()
        if node not in self.nodes():
            raise SandboxError(f"no such node: {node}", EX_USAGE)
        self.children = {}
        if not self.daemon(f"slurmd.{node}"):
            self.launch_slurmd(node)
        for pid, start in [self.daemon(f"slurmd.{node}"), *self.step_processes(node)]:
            send(pid, start, signal.SIGCONT)
        port = self.nodes().index(node) + 1
        up = ("idle", "allocated", "mixed")
        if not wait_until(lambda: self.listens(port) and self.node_states().get(node) in up, wait, 0.1):
            raise SandboxError(
                f"{node} is {self.node_states().get(node)} after {wait} s\n{self.tail('slurmd.' + node)}"
            )

    def exec(self, argv):
        self.require()
        os.environ["SLURM_CONF"] = str(self.conf)
        if self.state["client_namespace"]:
            argv = [*self.namespace_prefix("sandbox-login"), *argv]
        os.execvp(argv[0], argv)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    p = verbs.add_parser("start", help="start, or complete what runs")
    p.add_argument("--nodes", type=int, default=4, metavar="N")
    p.add_argument("--cpus-per-node", type=int, default=4, metavar="C")
    p.add_argument("--memory", type=int, default=8192, metavar="MB", help="declared per node, never enforced")
    p.add_argument("--consume-memory", action="store_true", help="schedule memory too (CR_Core_Memory)")
    p.add_argument("--gpus-per-node", default="0", metavar="G[,G...]",
                   help="fake GPUs: one number for all nodes, or one for each")  # fmt: skip
    p.add_argument("--prefix", default="node", help="node names are <prefix>1, <prefix>2, ...")
    p.add_argument("--first", type=int, default=1, metavar="N", help="number in the first node's name")
    p.add_argument("--grace-time", type=int, default=5, metavar="S",
                   help="of partition low; a floor: see --message-timeout")  # fmt: skip
    p.add_argument("--kill-wait", type=int, default=5, metavar="S",
                   help="SIGTERM to SIGKILL; a slurmd never waits less than 5 s")  # fmt: skip
    p.add_argument(
        "--slurmd-timeout", type=int, default=10, metavar="S", help="a silent node is down after this"
    )
    p.add_argument("--message-timeout", type=int, default=10, metavar="S",
                   help="kill-wait + this is how often the scheduler looks whether a preempted job's "
                   "grace has passed (for grace 5 s exactly: --kill-wait 2 --message-timeout 3)")  # fmt: skip
    p.add_argument("--proctrack", choices=("linuxproc", "pgid", "cgroup"), default="linuxproc")
    p.add_argument(
        "--requeue-delay",
        type=int,
        default=5,
        metavar="S",
        help="before a requeued job may start again; at least 5",
    )
    p.add_argument("--hostnames", choices=("auto", "yes", "no"), default="auto",
                   help="nodes see their own name and resolve the others (UTS+mount namespaces)")  # fmt: skip
    p.add_argument("--extra-conf", default="", metavar="LINES", help="appended to slurm.conf's settings")
    p.add_argument("--wait", type=float, default=30, metavar="S", help="give up when not idle after this")
    p.add_argument("--force", action="store_true", help="restart when it runs with other options")
    p = verbs.add_parser("stop")
    p.add_argument("--keep-logs", action="store_true", help="copy the logs to <dir>.log")
    p = verbs.add_parser("status")
    p.add_argument("--json", action="store_true")
    verbs.add_parser("env")
    p = verbs.add_parser("exec")
    p.add_argument("argv", nargs=argparse.REMAINDER)
    p = verbs.add_parser("fail-node")
    p.add_argument("node")
    p.add_argument("--daemon-only", action="store_true", help="leave its slurmstepd and tasks alone")
    p.add_argument("--freeze", action="store_true", help="SIGSTOP instead of SIGKILL")
    p = verbs.add_parser("start-node")
    p.add_argument("node")
    args = parser.parse_args(argv)

    try:
        if args.verb in ("status", "env", "exec"):
            box = Sandbox()
            if args.verb == "status":
                return box.status(args.json)
            box.require()
            if args.verb == "env":
                print(f"export SLURM_CONF={shlex.quote(str(box.conf))}")
                return 0
            words = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
            if not words:
                raise SandboxError("exec: no command", EX_USAGE)
            box.exec(words)
        lock = Sandbox().lock()
        box = Sandbox()  # read the state again, under the lock
        try:
            if args.verb == "start":
                if args.nodes < 1 or args.cpus_per_node < 1:
                    raise SandboxError("--nodes and --cpus-per-node are at least 1", EX_USAGE)
                numbers = args.gpus_per_node.split(",")
                if not all(map(str.isdecimal, numbers)) or len(numbers) not in (1, args.nodes):
                    raise SandboxError("--gpus-per-node is one number, or one for each node", EX_USAGE)
                if args.requeue_delay < 5:
                    raise SandboxError(
                        "--requeue-delay: Slurm takes its default of 120 s for less than 5", EX_USAGE
                    )
                names = ("nodes", "cpus_per_node", "memory", "consume_memory", "gpus_per_node", "prefix",
                         "first", "grace_time", "kill_wait", "slurmd_timeout", "message_timeout", "proctrack",
                         "requeue_delay", "hostnames", "extra_conf")  # fmt: skip
                box.start({n: getattr(args, n) for n in names}, args.force, args.wait)
                print(f"export SLURM_CONF={shlex.quote(str(box.conf))}")
            elif args.verb == "stop":
                was = box.state is not None
                begun = time.monotonic()
                box.stop(args.keep_logs)
                log(
                    f"stopped in {time.monotonic() - begun:.2f} s" if was else f"nothing to stop in {box.dir}"
                )
            elif args.verb == "fail-node":
                box.fail_node(args.node, args.daemon_only, args.freeze)
            elif args.verb == "start-node":
                box.start_node(args.node)
        finally:
            box.unlock(lock)
        return 0
    except SandboxError as error:
        log("error:", error)
        return error.code
    except OSError as error:
        log("error:", error)
        return 1 if error.errno != errno.EACCES else EX_USAGE


if __name__ == "__main__":
    sys.exit(main())
