"""Stands in for a training program: without TensorFlow, it starts at once."""

# A training without TensorFlow: commits, tells its events and its steps, as one of tf_preempt does.
PROGRAM = """
import os, sys, time
from tf_preempt.checkpointing.manifest import Manifest
from tf_preempt.goodput.events import EventLog
from tf_preempt.goodput.step_file import StepFile
from tf_preempt.goodput.status_file import Status, StatusFile
directory = os.environ["TF_PREEMPT_DIR_OVERRIDE"]
lives = len(os.listdir(directory + "/events")) if os.path.isdir(directory + "/events") else 0
log = EventLog(directory, incarnation=lives, worker=0)
steps = StepFile.from_environ(os.environ, worker=0, fit=0)
def commit(number, step, fit=0):
    manifest = Manifest(prefix=f"ckpt-{number}", number=number, step=step, incarnation=lives,
        resume={"fit": fit}, workers=1, reason="", written="", seconds=0.0, versions={})
    with open(f"{directory}/{manifest.name}", "wb") as file:
        file.write(manifest.to_bytes())
    log.write("commit", checkpoint=manifest.prefix, step=step)
    StatusFile.from_environ(os.environ).write(Status(incarnation=lives, commits=1, committed_step=step))
log.write("start", workers=1, pid=os.getpid())
"""
