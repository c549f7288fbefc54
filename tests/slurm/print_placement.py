"""One task of a step prints where it runs, where it takes all ranks to run, and which GPUs are its own.

With a directory as argument it then stays until all tasks have come so far, as in a training: Slurm forgets
the part of a step whose tasks have all left.
"""

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from tf_preempt._slurm import SlurmJob
from tf_preempt._slurm_control import SlurmControl
from tf_preempt.cluster_resolvers._slurm_components import StepComponents
from tf_preempt.cluster_resolvers._slurm_gpus import GpuRequest
from tf_preempt.cluster_resolvers._slurm_hostfile import with_hostfile
from tf_preempt.cluster_resolvers._slurm_layout import addresses, place_ranks
from tf_preempt.cluster_resolvers._slurm_own_gpus import settle_gpus

components = StepComponents(SlurmControl(os.environ))
job = with_hostfile(components.settle(SlurmJob.from_environ(os.environ)))
seen = os.environ.get("CUDA_VISIBLE_DEVICES")
settle_gpus(os.environ, job, GpuRequest(), place_ranks(job)[job.procid])
print(
    json.dumps(
        {
            "rank": job.procid,
            "hostname": socket.gethostname(),
            "nodename": os.environ["SLURMD_NODENAME"],
            "addresses": addresses(job),
            "reserved": job.resv_ports,
            "seen": seen,
            "own": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "distributions": job.group_distributions,
        }
    ),
    flush=True,
)
if len(sys.argv) > 1:
    here, give_up = Path(sys.argv[1]), time.monotonic() + 30.0
    (here / str(job.procid)).touch()
    while len(list(here.iterdir())) < job.ntasks and time.monotonic() < give_up:
        threading.Event().wait(0.05)
