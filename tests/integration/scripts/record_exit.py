"""Runs a program as this worker and writes down how it ended; ends with status 0 itself.

``record_exit.py DIRECTORY PROGRAM ARGUMENTS...`` writes ``DIRECTORY/<index in TF_CONFIG>.exit``: the exit
status (negative: the signal that killed it) and the time, in seconds since the epoch.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time

index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
status = subprocess.run([sys.executable, *sys.argv[2:]], check=False).returncode
pathlib.Path(sys.argv[1], f"{index}.exit").write_text(json.dumps([status, time.time()]))
