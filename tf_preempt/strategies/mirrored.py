"""Synchronous training on several devices of one machine."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

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
        ValueError: `devices` is empty, or names a device that does not exist (TensorFlow's own error).
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        cross_device_ops: tf.distribute.CrossDeviceOps | None = None,
    ) -> None:
        super().__init__(devices=devices, cross_device_ops=cross_device_ops)
