"""Two logical CPUs in the process of the tests, made before their modules let TensorFlow set up its devices.

Imported by the ``conftest.py`` of folders whose tests have strategies of two devices.
"""

from __future__ import annotations

import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
