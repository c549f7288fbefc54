import os

import pytest

from tf_preempt.cli.demo import data, settings
from tf_preempt.errors import LaunchError

WRITE_AND_READ = """
import os, sys
import numpy as np
import sklearn.datasets
from tf_preempt.cli.demo import data, settings

data_dir = sys.argv[1]
data.write(data_dir)
def stamps():
    return {e.name: e.stat().st_mtime_ns for e in os.scandir(data.dataset_dir(data_dir))}
written = stamps()
data.write(data_dir)
assert stamps() == written, "written twice"

found = {}
for split in ("train", "test"):
    dataset = data.read(data_dir, split)
    assert dataset.element_spec["image"].dtype.name == "uint8"
    rows = [(e["image"].tobytes(), int(e["label"])) for e in dataset.as_numpy_iterator()]
    assert rows == [(e["image"].tobytes(), int(e["label"])) for e in dataset.as_numpy_iterator()], "order"
    found[split] = rows
assert [len(found[split]) for split in ("train", "test")] == [settings.TRAIN_IMAGES, settings.TEST_IMAGES]
digits = sklearn.datasets.load_digits()
original = [(i.astype(np.uint8).tobytes(), int(l)) for i, l in zip(digits.images, digits.target)]
assert sorted(found["train"] + found["test"]) == sorted(original), "each image once, with its label"
assert len({label for _, label in found["test"]}) == 10

print("files", sorted(written))
"""


def test_each_image_is_written_once_in_several_files_and_read_in_one_order(run_script, tmp_path):
    result = run_script(
        WRITE_AND_READ, str(tmp_path / "data"), env={"TF_CPP_MIN_LOG_LEVEL": "2"}, timeout=120
    )
    assert result.rc == 0, result.stderr
    for split in ("train", "test"):
        assert result.stdout.count(f"uci_digits-{split}.tfrecord-") == settings.SHARDS


def test_data_set_counts_as_there_when_its_info_is(tmp_path):
    assert not data.is_there(str(tmp_path))
    os.makedirs(data.dataset_dir(str(tmp_path)))
    assert not data.is_there(str(tmp_path)), "tfds was interrupted"
    with open(os.path.join(data.dataset_dir(str(tmp_path)), "dataset_info.json"), "w", encoding="utf-8"):
        pass
    assert data.is_there(str(tmp_path))


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("tensorflow_datasets", "tensorflow-datasets"),
        ("importlib_resources", "importlib_resources"),
        ("sklearn", "scikit-learn"),
    ],
)
def test_missing_package_is_named_with_the_line_that_installs_it(module, package):
    with pytest.raises(LaunchError, match=f"needs {package}, ") as caught:
        data.check_extras(lambda name: None if name == module else object())
    assert "HINT: pip install '.[demo]' in the checkout" in str(caught.value)


def test_nothing_is_missing_here():
    data.check_extras()
