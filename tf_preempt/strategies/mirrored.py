"""Synchronous training on several devices of one machine."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_preempt.errors import ConfigError
from tf_preempt.strategies.base import StrategyMixin


class MirroredStrategy(StrategyMixin, tf.distribute.MirroredStrategy):  # type: ignore[misc]
    """``tf.distribute.MirroredStrategy`` whose input can be resumed, for Keras 3 and custom loops.

    Use it in place of TensorFlow's class, with the same arguments.

    Example:
        >>> strategy = tf_preempt.strategies.MirroredStrategy()
        >>> with strategy.scope():
        ...     model = build_model()
        ...     model.compile("adam", "mse")
        >>> model.fit(dataset, epochs=5)

    Args:
        devices: names of the devices to train on; None: all GPUs, or the CPU where there is none.
        cross_device_ops: a ``tf.distribute.CrossDeviceOps``; None: NCCL where it works, else copies.

    Raises:
        ConfigError: `devices` names one that does not exist.  TensorFlow takes another one in its place, and
            two replicas on one device wait for each other for ever in their first collective.
        ValueError: `devices` is empty, or holds what is no name of a device (TensorFlow's own error).
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
    ) -> None:
        super().__init__(devices=devices, cross_device_ops=cross_device_ops)
        _check_that_they_exist(self.extended.worker_devices)


def _check_that_they_exist(devices: Sequence[str]) -> None:
    present = [device.name for device in tf.config.list_logical_devices()]
    missing = [name for name in devices if not any(_is_same(name, one) for one in present)]
    if missing:
        raise ConfigError(
            f"devices={list(map(_short, devices))}: {', '.join(map(_short, missing))} is not there; "
            f"this process has {', '.join(map(_short, present))}.",
            hint=_cure(max(map(tf.DeviceSpec.from_string, missing), key=lambda one: one.device_index)),
        )


def _is_same(asked: str, present: str) -> bool:
    """Compares names; what one of them leaves out (the job and task of a process that is alone) is alike."""
    one, other = tf.DeviceSpec.from_string(asked), tf.DeviceSpec.from_string(present)
    pairs = ((one.job, other.job), (one.task, other.task))
    is_here = all(None in pair or pair[0] == pair[1] for pair in pairs)
    return is_here and (one.device_type, one.device_index) == (other.device_type, other.device_index)


def _short(name: str) -> str:
    """The name as a program writes it: ``CPU:1``."""
    return name.rpartition("/device:")[2]


def _cure(missing: tf.DeviceSpec) -> str:
    kind, others = missing.device_type, "name devices that exist, or leave devices out"
    if not tf.config.list_physical_devices(kind):
        return others
    limit = "" if kind == "CPU" else "memory_limit=MEBIBYTES"
    return (
        "divide the device before anything else of TensorFlow runs: "
        f"tf.config.set_logical_device_configuration(tf.config.list_physical_devices({kind!r})[0], "
        f"[tf.config.LogicalDeviceConfiguration({limit})] * {missing.device_index + 1}); or {others}"
    )
