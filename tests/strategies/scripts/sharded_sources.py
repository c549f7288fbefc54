"""Data sets of every kind of source, each holding the numbers from 0 to 23 once per epoch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

COUNT, FILES, BATCH = 24, 3, 4

Policy = tf.data.experimental.AutoShardPolicy


def with_policy(dataset: tf.data.Dataset, policy: Policy) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def numbers_of_file(index: int, files: int) -> range:
    return range(index, COUNT, files)


class Sources:
    """Writes its files to a directory of its own, alike on all workers.

    Args:
        directory: for this worker's files.
        files: into how many the numbers are written.
    """

    def __init__(self, directory: str, files: int = FILES) -> None:
        self._directory = os.path.join(directory, f"{files}-files")
        self._files = files
        os.makedirs(self._directory, exist_ok=True)

    def _paths(self, suffix: str) -> list[str]:
        return [os.path.join(self._directory, f"{index}.{suffix}") for index in range(self._files)]

    def _written(self, suffix: str, lines: Callable[[range], bytes]) -> list[str]:
        paths = self._paths(suffix)
        for index, path in enumerate(paths):
            with open(path, "wb") as file:
                file.write(lines(numbers_of_file(index, self._files)))
        return paths

    def _record_paths(self) -> list[str]:
        paths = self._paths("tfrecord")
        for index, path in enumerate(paths):
            with tf.io.TFRecordWriter(path) as writer:
                for number in numbers_of_file(index, self._files):
                    writer.write(str(number).encode())
        return paths

    def tfrecord(self) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(self._record_paths()).map(_number).batch(BATCH)

    def text_lines(self) -> tf.data.Dataset:
        paths = self._written("txt", lambda some: b"".join(b"%d\n" % one for one in some))
        return tf.data.TextLineDataset(paths).map(_number).batch(BATCH)

    def fixed_length(self) -> tf.data.Dataset:
        paths = self._written("bin", lambda some: b"".join(b"%4d" % one for one in some))
        return tf.data.FixedLengthRecordDataset(paths, 4).map(tf.strings.strip).map(_number).batch(BATCH)

    def csv(self) -> tf.data.Dataset:
        """Shuffled without a seed, as it is by default."""
        paths = self._written("csv", lambda some: b"n\n" + b"".join(b"%d\n" % one for one in some))
        rows = tf.data.experimental.make_csv_dataset(
            paths, BATCH, column_defaults=[tf.int64], num_epochs=1, shuffle_buffer_size=7
        )
        return rows.map(lambda row: row["n"])

    def interleaved(self) -> tf.data.Dataset:
        paths = tf.data.Dataset.from_tensor_slices(self._record_paths())
        records = paths.interleave(tf.data.TFRecordDataset, cycle_length=2, num_parallel_calls=2)
        return records.map(_number, num_parallel_calls=2).batch(BATCH).prefetch(1)

    def listed_shuffled(self) -> tf.data.Dataset:
        self._record_paths()
        paths = tf.data.Dataset.list_files(os.path.join(self._directory, "*.tfrecord"))
        return paths.interleave(tf.data.TFRecordDataset).map(_number).shuffle(5).batch(BATCH)

    def named_by_what_fails(self) -> tf.data.Dataset:
        """The names are in a file that is missing: nobody knows before they are read."""
        lists = tf.data.Dataset.from_tensor_slices([os.path.join(self._directory, "no such list")])
        names = lists.map(tf.io.read_file).filter(lambda name: name != "")
        return names.interleave(tf.data.TFRecordDataset).map(_number).batch(BATCH)

    def zipped(self) -> tf.data.Dataset:
        return tf.data.Dataset.zip((self.tfrecord(), self.text_lines()))

    def concatenated(self) -> tf.data.Dataset:
        """Two readers, each with files of its own, which hold 12 numbers each."""
        halves = [
            self.tfrecord().unbatch().filter(lambda x: x < COUNT // 2),
            self.text_lines().unbatch().filter(lambda x: x >= COUNT // 2),
        ]
        return halves[0].concatenate(halves[1]).batch(BATCH)

    def tfds(self) -> tf.data.Dataset:
        """Read with its files shuffled, in parallel and in any order, as TFDS does when it shuffles."""
        rows = self._tfds_builder.as_dataset(split="train", shuffle_files=True)
        return rows.map(lambda row: row["n"]).shuffle(7).batch(BATCH)

    @functools.cached_property
    def _tfds_builder(self) -> Any:
        import tensorflow_datasets as tfds

        return tfds.dataset_builders.store_as_tfds_dataset(
            name="numbers",
            version="1.0.0",
            data_dir=os.path.join(self._directory, "tfds"),
            split_datasets={"train": tf.data.Dataset.range(COUNT).map(lambda x: {"n": x})},
            features=tfds.features.FeaturesDict({"n": tfds.features.Scalar(tf.int64)}),
            description="Numbers.",
            release_notes={"1.0.0": "First."},
            download_config=tfds.download.DownloadConfig(num_shards=self._files, try_download_gcs=False),
        )


def _number(text: tf.Tensor) -> tf.Tensor:
    return tf.strings.to_number(text, tf.int64)


def adding(variable: tf.Variable) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: x + variable


def slices() -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices(list(range(COUNT)))
        .map(lambda x: tf.cast(x, tf.int64))
        .batch(BATCH)
    )


def generated() -> tf.data.Dataset:
    def numbers() -> Iterator[int]:
        yield from range(COUNT)

    spec = tf.TensorSpec((), tf.int64)
    return tf.data.Dataset.from_generator(numbers, output_signature=spec).shuffle(9).batch(BATCH)


def in_any_order() -> tf.data.Dataset:
    options = tf.data.Options()
    options.deterministic = False
    dataset = tf.data.Dataset.range(COUNT).map(lambda x: x + 0, num_parallel_calls=8)
    return dataset.with_options(options).shuffle(5).batch(BATCH)


def hinted() -> tf.data.Dataset:
    hint = tf.data.experimental.SHARD_HINT
    return tf.data.Dataset.range(COUNT).shuffle(COUNT).shard(hint, hint).batch(BATCH)


@tf.function
def _shuffled(some: tf.Tensor) -> tf.Tensor:
    return tf.random.shuffle(some)


FILE_SOURCES = (
    "tfrecord",
    "text_lines",
    "fixed_length",
    "interleaved",
    "listed_shuffled",
    "zipped",
    "concatenated",
    "tfds",
)
MEMORY_SOURCES: dict[str, Callable[[], tf.data.Dataset]] = {
    "slices": slices,
    "generator": generated,
    "any order": in_any_order,
    "shuffled": lambda: tf.data.Dataset.range(COUNT).shuffle(COUNT).batch(BATCH),
    "shuffled once": lambda: (
        tf.data.Dataset.range(COUNT).shuffle(COUNT, reshuffle_each_iteration=False).batch(BATCH)
    ),
    "shuffled twice": lambda: tf.data.Dataset.range(COUNT).shuffle(9).cache().shuffle(9).batch(BATCH),
    "indices shuffled in map": lambda: (
        tf.data.Dataset.range(1).map(lambda _: tf.random.shuffle(tf.range(COUNT))).unbatch().batch(BATCH)
    ),
    "shuffled in a called function": lambda: (
        tf.data.Dataset.range(1).map(lambda _: _shuffled(tf.range(COUNT))).unbatch().batch(BATCH)
    ),
    "shuffled in flat_map": lambda: (
        tf.data.Dataset.range(4)
        .flat_map(lambda x: tf.data.Dataset.range(x * 6, x * 6 + 6).shuffle(6))
        .batch(BATCH)
    ),
}


def every_case(directory: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and data sets; the names say the policy."""
    enough, one = Sources(directory), Sources(directory, files=1)
    for name in FILE_SOURCES:
        make = getattr(enough, name)
        yield f"AUTO, {name}", make
        yield f"FILE, {name}", lambda make=make: with_policy(make(), Policy.FILE)
        yield f"DATA, {name}", lambda make=make: with_policy(make(), Policy.DATA)
        yield f"AUTO, one file, {name}", getattr(one, name)
    yield "AUTO, csv", enough.csv
    yield "DATA, csv", lambda: with_policy(enough.csv(), Policy.DATA)
    yield (
        "AUTO, files beside memory",
        lambda: tf.data.Dataset.zip((enough.tfrecord(), slices())).map(lambda record, _: record),
    )
    for name, make in MEMORY_SOURCES.items():
        yield f"AUTO, {name}", make
        yield f"DATA, {name}", lambda make=make: with_policy(make(), Policy.DATA)
    yield "HINT, hinted", lambda: with_policy(hinted(), Policy.HINT)
    for policy in (Policy.OFF, Policy.HINT):
        yield f"{policy.name}, whole", lambda policy=policy: with_policy(enough.tfrecord(), policy)
        yield f"{policy.name}, whole, shuffled", lambda policy=policy: with_policy(generated(), policy)
