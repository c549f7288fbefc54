"""What every strategy of this package adds to TensorFlow's class, in one place."""

from __future__ import annotations

from typing import Any

from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies.classic_api import ClassicApiMixin
from tf_preempt.strategies.input import ResumableInputMixin
from tf_preempt.strategies.keras_compat import KerasReduceMixin
from tf_preempt.strategies.partial_batches import PartialBatchMixin
from tf_preempt.strategies.sharding import ShardingMixin


class StrategyMixin(KerasReduceMixin, PartialBatchMixin, ResumableInputMixin, ShardingMixin, ClassicApiMixin):
    """Put it before the ``tf.distribute.Strategy`` class that is to be extended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _tf_internals.give_own_groups(self)
        super().__init__(*args, **kwargs)
        _tf_internals.count_instances_in_graph(self)
        _tf_internals.synchronize_in_branches(self)
