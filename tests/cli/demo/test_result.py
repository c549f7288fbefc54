import numpy as np
import pytest

from tf_preempt.cli.demo.result import final_accuracy, read_result, write_result
from tf_preempt.errors import LaunchError


class Variable:
    def __init__(self, path, value):
        self.path = path
        self._value = value

    def numpy(self):
        return self._value


def test_result_comes_back_bit_for_bit(tmp_path):
    path = str(tmp_path / "result.npz")
    kernel = np.array([-0.0, np.nan, 1e-42], np.float32)
    write_result(
        path,
        weights=[Variable("dense/kernel", kernel), Variable("dense/kernel", kernel[:1])],
        optimizer=[Variable("adam/iteration", np.int64(3))],
        history={"val_accuracy": [0.25, 0.5]},
    )
    result = read_result(path)
    assert sorted(result) == [
        "history/val_accuracy",
        "optimizer/00/adam/iteration",
        "weights/00/dense/kernel",
        "weights/01/dense/kernel",
    ]
    assert result["weights/00/dense/kernel"].tobytes() == kernel.tobytes()
    assert result["optimizer/00/adam/iteration"].dtype == np.int64
    assert final_accuracy(result) == 0.5
    assert [file.name for file in tmp_path.iterdir()] == ["result.npz"]


def test_missing_result_is_an_error_that_names_the_file(tmp_path):
    with pytest.raises(LaunchError, match=r"nowhere\.npz"):
        read_result(str(tmp_path / "nowhere.npz"))


@pytest.mark.parametrize("history", [{}, {"history/val_accuracy": np.array([])}])
def test_history_without_accuracy_is_an_error(history):
    with pytest.raises(LaunchError, match="val_accuracy"):
        final_accuracy(history)
