import pytest

from tf_preempt.cli.demo import settings
from tf_preempt.cli.demo.settings import DemoSettings
from tf_preempt.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", 0), ("workers", 5), ("epochs", 0), ("seed", -1), ("seed", 2**32), ("save_every", 0)],
)
def test_number_out_of_range_is_named(name, value):
    with pytest.raises(ConfigError, match=rf"{name}={value} "):
        DemoSettings(**{name: value})


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_smallest_and_largest_seed(seed):
    assert DemoSettings(seed=seed).seed == seed


@pytest.mark.parametrize("workers", range(1, settings.MAX_WORKERS + 1))
def test_files_and_batches_divide_evenly_among_workers(workers):
    sizes = (settings.SHARDS, settings.BATCH, settings.VALIDATION_BATCH)
    assert [size % workers for size in sizes] == [0, 0, 0]
    assert settings.TRAIN_IMAGES % settings.SHARDS == 0
    assert settings.TRAIN_IMAGES % settings.BATCH == 0
    # Files of the test split differ by one image; the worker with the most decides.
    per_worker = settings.SHARDS // workers
    fewest = -(-settings.TEST_IMAGES // workers)
    most = per_worker * -(-settings.TEST_IMAGES // settings.SHARDS)
    batch = settings.VALIDATION_BATCH // workers
    assert [-(-images // batch) for images in (fewest, most)] == [settings.VALIDATION_STEPS] * 2
