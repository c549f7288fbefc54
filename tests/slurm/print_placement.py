"""One task of a step prints where it runs, where it takes all ranks to run, and which GPUs are its own."""

import json
import os
import socket

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_gpus import GpuRequest
from tf_preempt.cluster_resolvers._slurm_hostfile import with_hostfile
from tf_preempt.cluster_resolvers._slurm_layout import addresses, place_ranks
from tf_preempt.cluster_resolvers._slurm_own_gpus import settle_gpus

job = with_hostfile(SlurmJob.from_environ(os.environ))
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
        }
    )
)
