"""One task of a step: prints where it runs, and where the address mapping says that each rank runs."""

import json
import os
import socket

from tf_preempt._slurm import SlurmJob
from tf_preempt.cluster_resolvers._slurm_layout import addresses

job = SlurmJob.from_environ(os.environ)
print(
    json.dumps(
        {
            "rank": job.procid,
            "hostname": socket.gethostname(),
            "nodename": os.environ["SLURMD_NODENAME"],
            "addresses": addresses(job),
            "reserved": job.resv_ports,
        }
    )
)
