"""The demo's data set: the UCI digits of scikit-learn, as TFDS writes and reads any other.

Run as ``python -m tf_preempt.cli.demo.data DIRECTORY`` it writes the data set, if it is not there.  The
images ship inside scikit-learn, so nothing is downloaded.

References:
    https://scikit-learn.org/stable/modules/generated/sklearn.datasets.load_digits.html, 2026-11.
    https://www.tensorflow.org/datasets/api_docs/python/tfds/ReadConfig, 2026-11.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

from tf_preempt.cli.demo.settings import SHARDS, TEST_IMAGES, TRAIN_IMAGES
from tf_preempt.errors import LaunchError

__all__ = ["check_extras", "dataset_dir", "is_there", "read", "write"]

_NAME = "uci_digits"
_VERSION = "1.0.0"
# By the names under which they are imported; tensorflow_datasets needs the second and does not say so.
_EXTRAS = {
    "tensorflow_datasets": "tensorflow-datasets",
    "importlib_resources": "importlib_resources",
    "sklearn": "scikit-learn",
}
# Which images are held out; the same for every seed of the demo, so that accuracies can be compared.
_SPLIT_SEED = 0


def check_extras(find: Callable[[str], object | None] = importlib.util.find_spec) -> None:
    """Looks for the packages that only the demo needs, without importing them.

    Args:
        find: says where a module is; None: nowhere.

    Raises:
        LaunchError: one is not installed.
    """
    missing = [package for module, package in _EXTRAS.items() if find(module) is None]
    if missing:
        raise LaunchError(
            f"the demo needs {' and '.join(missing)}, which this Python ({sys.executable}) does not have.",
            hint="pip install '.[demo]' in the checkout of tf_preempt",
        )


def dataset_dir(data_dir: str) -> str:
    """Where below `data_dir` TFDS keeps the data set."""
    return os.path.join(data_dir, _NAME, _VERSION)


def is_there(data_dir: str) -> bool:
    """Says whether the data set has been written; TFDS renames a whole one into place."""
    return os.path.isfile(os.path.join(dataset_dir(data_dir), "dataset_info.json"))


def write(data_dir: str) -> None:
    """Writes both splits in `SHARDS` TFRecord files each; a data set that is there is used again.

    Args:
        data_dir: TFDS's folder; created.

    Raises:
        OSError: it cannot be written.
    """
    if is_there(data_dir):
        return
    import tensorflow as tf
    import tensorflow_datasets as tfds

    images, labels = _load_digits()
    splits = {"train": slice(None, TRAIN_IMAGES), "test": slice(TRAIN_IMAGES, TRAIN_IMAGES + TEST_IMAGES)}
    tfds.dataset_builders.store_as_tfds_dataset(
        name=_NAME,
        version=_VERSION,
        data_dir=data_dir,
        split_datasets={
            name: tf.data.Dataset.from_tensor_slices({"image": images[part], "label": labels[part]})
            for name, part in splits.items()
        },
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Tensor(shape=(8, 8, 1), dtype=tf.uint8),
                "label": tfds.features.ClassLabel(num_classes=10),
            }
        ),
        description="Handwritten digits of the UCI repository, 8 by 8 pixels with values from 0 to 16.",
        release_notes={_VERSION: "As scikit-learn has them."},
        download_config=tfds.download.DownloadConfig(num_shards=SHARDS, try_download_gcs=False),
    )


def _load_digits() -> tuple[Any, Any]:
    """Images (1797, 8, 8, 1) of uint8 and labels (1797,) of int64, in a random order that never changes."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(digits.target))
    images = digits.images.astype(np.uint8)[..., None]
    return images[order], digits.target.astype(np.int64)[order]


def read(data_dir: str, split: str) -> Any:
    """Reads a split as a ``tf.data.Dataset`` of (image uint8 (8, 8, 1), label int64 ()).

    Always in the same order, and sharded over the workers by files.

    Args:
        data_dir: what `write` was given.
        split: ``"train"`` or ``"test"``.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    config = tfds.ReadConfig(
        options=options,
        # A worker that reads some of the files sees fewer images than the whole split has.
        assert_cardinality=False,
        # Images kept in memory are no part of an iterator's state that can be saved.
        try_autocache=False,
        skip_prefetch=True,
    )
    builder = tfds.builder_from_directory(dataset_dir(data_dir))
    return builder.as_dataset(split=split, as_supervised=False, shuffle_files=False, read_config=config)


if __name__ == "__main__":
    write(sys.argv[1])
