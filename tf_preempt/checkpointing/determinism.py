"""Whether a resumed run can be exact at all: only if TensorFlow's ops give the same bits each time."""

from __future__ import annotations

import logging

from tf_preempt.strategies import _tf_internals

_log = logging.getLogger("tf_preempt")
_warned = False


def warn_if_ops_may_differ() -> None:
    """Warns, once in a process, if op determinism is off.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.

    Environment:
        TF_DETERMINISTIC_OPS: TensorFlow reads it; 1 turns op determinism on.

    References:
        https://www.tensorflow.org/api_docs/python/tf/config/experimental/enable_op_determinism, TF 2.21.
    """
    global _warned
    if _warned or _tf_internals.op_determinism_is_on():
        return
    _warned = True
    _log.warning(
        "Op determinism is off: kernels and data pipelines may do the same work in another order each time, "
        "so an interrupted run can end with other weights than an undisturbed one. "
        "HINT: at the start of the program keras.utils.set_random_seed(1) and "
        "tf.config.experimental.enable_op_determinism()."
    )
