"""What every strategy of this package adds to TensorFlow's class, in one place."""

from __future__ import annotations

from tf_preempt.strategies.classic_api import ClassicApiMixin
from tf_preempt.strategies.input import ResumableInputMixin
from tf_preempt.strategies.keras_compat import KerasReduceMixin


class StrategyMixin(KerasReduceMixin, ResumableInputMixin, ClassicApiMixin):
    """Put it before the ``tf.distribute.Strategy`` class that is to be extended."""
