"""What decides how a data set can be divided over workers; looked up in the data set as it was built."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tensorflow as tf

from tf_preempt import errors
from tf_preempt.strategies import _tf_internals
from tf_preempt.strategies._tf_internals import dataset_graphs, datasets, orders
from tf_preempt.strategies.sharding import graph_nodes, shard_graph
from tf_preempt.strategies.sharding.exchange import shortened

Policy = tf.data.experimental.AutoShardPolicy

# Sources that TensorFlow shards by file, without the version at the end of an op's name.
_READER_OPS = (
    "ArrayRecordDataset",
    "FixedLengthRecordDataset",
    "RecordIODataset",
    "SSTableDataset",
    "TextLineDataset",
    "TFRecordDataset",
)

# A data set that holds more in arrays, and no reader that Python can see, is not copied to ask TensorFlow.
_ASK_UP_TO_BYTES = 16 * 2**20

# Of a data set that holds more no graph is written to learn of the order of its steps.
_WRITE_UP_TO_BYTES = 2**30

# As much of each text is sent to other workers: all of them, with `_MOST_READERS` numbers, fit into a row.
_TEXTS = ("seeds", "element_spec", "obstacle", "refused")
_TEXT_BYTES = 600

# Of an error, which has its cure after it.
_MESSAGE_BYTES = 400
_CURE_BYTES = 180

_REFUSAL_HINT = (
    "see that the data set can be built and run on that worker, where the error has its traceback."
)

# Of so many readers the numbers of files are sent; of more, the smallest only.
_MOST_READERS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """What one worker knows of its data set.

    Args:
        policy: ``auto_shard_policy`` of the data set's options.
        files: how many files each reader has, None where that is not known; None in place of the tuple: the
            data set cannot be sharded by files, or is not to be.
        hinted: it holds a ``shard`` whose arguments are ``tf.data.experimental.SHARD_HINT``.
        unseeded: a shuffle or a random source in it differs from process to process.
        unordered: a parallel step was told to give elements in the order in which they are ready.
        free_order: the options of the data set allow that to all parallel steps.
        obstacle: why the data set cannot be built again with a seed and in order; None if it can, or need
            not.
        repeated: what its functions choose or order by chance would be the same in every epoch, once that has
            a seed.
        by_index: it reads data sets of `tf_preempt.data`, which come in one order on all workers.
        seeds: those that its shuffles were given, as text; and what orders of `tf_preempt.data` depend on.
        batch_size: rows of a whole batch; None if unknown.
        batches: how many; None if unknown or endless.
        element_spec: as text, without the number of rows.
        refused: the text of the error with which this worker refuses the data set; None if it does not.
    """

    policy: tf.data.experimental.AutoShardPolicy
    files: tuple[int | None, ...] | None = None
    hinted: bool = False
    unseeded: bool = False
    unordered: bool = False
    free_order: bool = False
    obstacle: str | None = None
    repeated: bool = False
    by_index: bool = False
    seeds: str = ""
    batch_size: int | None = None
    batches: int | None = None
    element_spec: str = ""
    refused: str | None = None

    def __post_init__(self) -> None:
        if self.files is not None and not self.files:
            raise ValueError("files=(): expected None, or the number of files of one reader or more.")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size!r}: expected 1 or more, or None.")

    @property
    def fewest_files(self) -> int | None:
        """The smallest number of files that a reader has; None if no reader's number is known."""
        return min((count for count in self.files or () if count is not None), default=None)

    def to_json(self) -> str:
        """The facts as text for other workers, with long texts cut to what can be sent."""
        fields = dataclasses.asdict(self) | {"policy": self.policy.name}
        for name in _TEXTS:
            if fields[name] is not None:
                fields[name] = shortened(fields[name], _TEXT_BYTES)
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> SourceFacts:
        """The facts that another worker sent.

        Raises:
            ValueError: `text` is not what `to_json` gives.
        """
        fields = json.loads(text)
        files = fields["files"]
        return cls(
            **fields | {"policy": Policy[fields["policy"]], "files": None if files is None else tuple(files)}
        )


def source_facts(dataset: tf.data.Dataset, workers: int) -> SourceFacts:
    """Looks at how a data set was built, without running it.

    Only a data set of file names is run, where it does not know how many there are.

    Args:
        dataset: any; what its functions build inside is searched too.
        workers: among how many it is to be shared; one or more.

    Raises:
        ConfigError: a data set of file names cannot be run; or policy FILE was asked for, and there are too
            many steps to tell which files are read.
        InternalsChangedError: TensorFlow's private names have changed.
    """
    nodes = list(_tf_internals.walk_dataset(dataset))
    options = dataset.options()
    cardinality = int(dataset.cardinality())
    policy = options.experimental_distribute.auto_shard_policy
    seeds = [str(pair) for node in nodes for pair in orders.given_seeds(node)]
    by_index = [str(counter.options) for counter in _tf_internals.epoch_counters(dataset)]
    return SourceFacts(
        policy=policy,
        files=_file_counts(dataset, nodes, workers) if policy in (Policy.AUTO, Policy.FILE) else None,
        hinted=any(datasets.is_shard_hint(node) for node in nodes),
        unseeded=any(orders.is_unseeded(node) for node in nodes),
        unordered=any(orders.is_unordered(node) for node in nodes) or _hides_any_order(dataset, nodes),
        free_order=options.deterministic is False,
        by_index=bool(by_index),
        seeds=", ".join(seeds + by_index),
        batch_size=batch_size(dataset),
        batches=cardinality if cardinality >= 0 else None,
        element_spec=_spec_text(dataset.element_spec),
    )


def refusal(error: Exception) -> SourceFacts:
    """The facts of a worker on which looking at the data set ended with `error`; no others matter then."""
    text = str(error)
    if not isinstance(error, errors.ConfigError):
        text = f"looking at the data set raised {type(error).__name__}: {text}"
    message, _, cure = text.partition("\nHINT: ")
    message = shortened(message, _MESSAGE_BYTES)
    cure = shortened(cure or _REFUSAL_HINT, _CURE_BYTES)
    return SourceFacts(policy=Policy.AUTO, refused=f"{message}\nHINT: {cure}")


def _file_counts(
    dataset: tf.data.Dataset, nodes: list[tf.data.Dataset], workers: int
) -> tuple[int | None, ...] | None:
    """TensorFlow itself says whether it can shard by files, and which lists of files it would divide."""
    if not _can_be_written(dataset):
        _refuse_file_policy(dataset)
        return None
    too_large = dataset_graphs.constant_bytes(dataset) > _ASK_UP_TO_BYTES
    if too_large and not any(_reads_files(node) for node in nodes):
        return None
    try:
        graph = dataset_graphs.sharded_graph(dataset, workers)
    except tf.errors.OpError:
        return None
    counts = _counted(graph)
    if len(counts) > _MOST_READERS:
        return (min((count for count in counts if count is not None), default=None), None)
    return counts or None


def _counted(graph: Any) -> tuple[int | None, ...]:
    """The names of files are the user's data set, in which anything can fail, and on one worker alone."""
    try:
        return tuple(shard_graph.element_count(graph, one) for one in shard_graph.file_lists(graph))
    except tf.errors.OpError as error:
        raise errors.ConfigError(
            "the names of the files that the data set reads cannot be counted, for the data set that gives "
            f"them fails with {type(error).__name__}: {error.message}",
            hint="see that the names can be read on every worker, or set auto_shard_policy = DATA, for which "
            "they are not counted.",
        ) from error


def _hides_any_order(dataset: tf.data.Dataset, nodes: list[tf.data.Dataset]) -> bool:
    """Python keeps no ``deterministic=False`` of a parallel ``interleave``."""
    if not any(orders.hides_order(node) for node in nodes) or not _can_be_written(dataset):
        return False
    if dataset_graphs.constant_bytes(dataset) > _WRITE_UP_TO_BYTES:
        return False
    try:
        return graph_nodes.gives_in_any_order(dataset_graphs.dataset_graph(dataset))
    except tf.errors.OpError:
        return False


def _can_be_written(dataset: tf.data.Dataset) -> bool:
    """TensorFlow writes a data set once for each time it is read, which doubles with each zip of one."""
    return dataset_graphs.steps_in_graph(dataset) <= dataset_graphs.MOST_STEPS


def _refuse_file_policy(dataset: tf.data.Dataset) -> None:
    if dataset.options().experimental_distribute.auto_shard_policy == Policy.FILE:
        raise errors.ConfigError(
            f"auto_shard_policy = FILE: the data set has {dataset_graphs.steps_in_graph(dataset)} steps, "
            "counted as often as they are read, too many to tell which files they read: expected at most "
            f"{dataset_graphs.MOST_STEPS}.",
            hint="zip a data set with itself less often, or set auto_shard_policy = DATA.",
        )


def _reads_files(node: tf.data.Dataset) -> bool:
    if _tf_internals.dataset_file_names(node) is not None:
        return True
    return any(op.type.startswith(_READER_OPS) for op in _tf_internals.dataset_function_ops(node))


def batch_size(dataset: tf.data.Dataset) -> int | None:
    """Rows of a whole batch as the shapes of `dataset` say, or the steps that it was built of; None: unknown.

    Raises:
        InternalsChangedError: TensorFlow's private names have changed.
    """
    rows = {_rows(spec) for spec in tf.nest.flatten(dataset.element_spec)}
    if len(rows) == 1 and None not in rows:
        return rows.pop()
    return dataset_graphs.computed_batch_size(dataset) if _can_be_written(dataset) else None


def _rows(spec: Any) -> int | None:
    shape = getattr(spec, "shape", None)
    if not isinstance(shape, tf.TensorShape) or not shape.rank:
        return None
    rows: int | None = shape[0]
    return rows


def _spec_text(element_spec: Any) -> str:
    def without_rows(spec: Any) -> Any:
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
            return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
        return spec

    return str(tf.nest.map_structure(without_rows, element_spec))
