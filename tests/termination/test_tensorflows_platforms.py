"""On Borg and Google Cloud a program leaves as TensorFlow's handler does there; its own code is asked."""

from __future__ import annotations

import json

from tf_preempt.termination import Platform, TerminationConfig, auto, detect_platform, gce
from tf_preempt.termination.cloud import Firmware
from tf_preempt.termination.exit_codes import restart_exit_code

ASK_TENSORFLOW = """
import json
from tensorflow.python.distribute.failure_handling import failure_handling, failure_handling_util
found = {}
device = failure_handling_util.PlatformDevice
for name, platform in [("detected", failure_handling_util.detect_platform()), ("GCE_GPU", device.GCE_GPU)]:
    config = failure_handling._complete_config_for_environment(platform, None)
    try:
        config.exit_fn()
    except SystemExit as left:
        code = left.code
    function = config.termination_watcher_fn
    found[name] = [platform.name, code, config.grace_period, function and function.__name__]
print("found", json.dumps(found))
"""


def test_what_is_no_google_cloud_is_borg_for_tensorflow_and_is_left_as_borg(run_script, free_port):
    """TensorFlow looks for Google Cloud's metadata server, and takes every other machine for one of Borg."""
    result = run_script(ASK_TENSORFLOW, env={"GCE_METADATA_IP": f"127.0.0.1:{free_port}"}, timeout=120)
    assert result.rc == 0, result.stderr
    found = json.loads(result.stdout.rpartition("found ")[2])
    platform, code, grace_s, watcher = found["detected"]
    assert platform.startswith("INTERNAL_")
    assert (grace_s, watcher) == (0, None)  # saves at once; SIGTERM is the notice

    ours = detect_platform({}, firmware=Firmware())
    assert ours is Platform.LOCAL
    assert restart_exit_code(ours) == code
    assert auto.usual_signals(ours) == ("SIGTERM",)
    assert TerminationConfig().grace_period is None

    assert found["GCE_GPU"] == [
        "GCE_GPU",
        restart_exit_code(Platform.GCE),
        gce._GPU_MAINTENANCE_NOTICE_S,
        "termination_watcher_function_gce",
    ]
