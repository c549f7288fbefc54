"""Models of the legacy Keras (``tf_keras``), which Keras 3's callbacks cannot serve.

``TF_USE_LEGACY_KERAS=1`` makes ``tf.keras`` the package ``tf_keras``, which is Keras 2 under another name.
Its ``fit`` calls any callback that it is given, but neither its loop nor its variables are those of Keras 3.
"""

from __future__ import annotations

from typing import Any

from tf_preempt.errors import ConfigError


def is_legacy_model(model: Any) -> bool:
    """Says whether `model` is of the legacy Keras; neither Keras is imported to find out."""
    return any(base.__module__.partition(".")[0] == "tf_keras" for base in type(model).__mro__)


def check_not_legacy(model: Any) -> None:
    """Refuses a model of the legacy Keras.

    Raises:
        ConfigError: it is one.
    """
    if is_legacy_model(model):
        raise ConfigError(
            f"PreemptionCheckpoint was given to fit of {type(model).__name__}, a model of the legacy Keras "
            "(tf_keras, or tf.keras with TF_USE_LEGACY_KERAS=1): expected a model of Keras 3.",
            hint="train it in a custom loop with tf_preempt.PreemptionCheckpointHandler, which saves any "
            "tf.train.Checkpoint; or make the model with Keras 3 (import keras, and unset "
            "TF_USE_LEGACY_KERAS).",
        )
