"""The Keras conformance matrix: its cases, and the table of docs/keras.md that is made of them.

    python -m tests.integration.scripts.keras_matrix_table           # is docs/keras.md up to date?
    python -m tests.integration.scripts.keras_matrix_table --write   # bring it up to date

Needs no TensorFlow: the cases themselves are functions of these names in ``keras_matrix_<group>.py``.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "keras.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the matrix.

    Args:
        name: of the function in the group's module.
        group: part of the matrix whose cases run in one process.
        title: what a reader of docs/keras.md finds in the row.
        tolerance: how far values may differ, relatively and absolutely.
        note: what the reader must know beside it; the case itself checks it.
        refused: per setting that cannot run the case, a pattern that its error matches.
    """

    name: str
    group: str
    title: str
    tolerance: float = 1e-6
    note: str = ""
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)


CASES = (
    Case(group="data", name="tf_data", title="`tf.data`, shuffled and prefetched; `evaluate`, `predict`"),
    Case(group="data", name="numpy_arrays", title="NumPy arrays"),
    Case(group="data", name="py_dataset", title="`PyDataset`"),
    Case(
        group="data",
        name="generator",
        title="Python generator",
        note=(
            "Under a strategy, Keras takes some of a generator's batches to learn their shapes; they "
            "are not trained on. A generator whose batches all matter goes into "
            "`tf.data.Dataset.from_generator` or a `PyDataset`."
        ),
    ),
    Case(group="data", name="dict_inputs", title="dict of inputs, with booleans"),
    Case(group="data", name="string_lookup", title="strings, through `StringLookup`"),
    Case(group="data", name="uint8_images", title="images of type uint8"),
    Case(group="data", name="integer_tokens", title="integers, into a model built from its first batch"),
    Case(group="data", name="ragged_tensors", title="`RaggedTensor`"),
    Case(group="data", name="ragged_last_batch", title="last batch smaller (17 rows in batches of 8)"),
    Case(group="data", name="uneven_first_batch", title="first batch that cannot be halved (7 rows)"),
    Case(group="data", name="unknown_cardinality", title="data set of unknown cardinality"),
    Case(group="data", name="steps_per_epoch", title="`steps_per_epoch` over an endless data set"),
    Case(group="data", name="one_file", title="fewer files than workers"),
    Case(
        group="data", name="predict_uneven_tails", title="`predict` of 1, 7, 17 and 21 rows in batches of 8"
    ),
    Case(group="data", name="distributed_before_fit", title="data set distributed before `fit`"),
    Case(
        group="loops",
        name="steps_per_execution_1",
        title="`steps_per_execution=1`, validation, `steps_per_epoch`",
    ),
    Case(group="loops", name="steps_per_execution_2", title="`steps_per_execution=2`"),
    Case(group="loops", name="steps_per_execution_4", title="`steps_per_execution=4`"),
    Case(group="loops", name="steps_per_execution_7", title="`steps_per_execution=7`"),
    Case(group="loops", name="validation_split", title="`validation_split`"),
    Case(group="loops", name="validation_data", title="`validation_data`, `validation_steps`"),
    Case(group="loops", name="validation_freq", title="`validation_freq`"),
    Case(group="loops", name="sample_weight", title="`sample_weight`, `weighted_metrics`"),
    Case(group="loops", name="class_weight", title="`class_weight`"),
    Case(
        group="loops",
        name="batch_methods",
        title="`train_on_batch`, `test_on_batch`, `predict_on_batch`",
        note=(
            "Every replica gets the whole batch: the result of training is the same, "
            "`predict_on_batch` returns the rows once per replica."
        ),
    ),
    Case(
        group="loops",
        name="own_train_step",
        title="own `train_step` and `test_step`",
        note=(
            "`compute_loss` returns this replica's share of the loss. Who logs it multiplies it by "
            "`num_replicas_in_sync`."
        ),
    ),
    Case(
        group="loops",
        name="own_compute_loss",
        title="own `compute_loss`",
        note=(
            "Gradients are added over the replicas: an own loss is the sum over this replica's rows, "
            "divided by the rows of the global batch (not their mean)."
        ),
    ),
    Case(group="loops", name="run_eagerly", title="`run_eagerly=True`"),
    Case(group="loops", name="repeated_fit", title="`initial_epoch`, second `fit`, second `compile`"),
    Case(group="models", name="multi_output", title="several outputs, losses and metrics"),
    Case(group="models", name="regularizers", title="regularizers, `add_loss`"),
    Case(group="models", name="sync_batch_normalization", title="`BatchNormalization(synchronized=True)`"),
    Case(
        group="models",
        name="batch_normalization",
        title="`BatchNormalization`",
        note=(
            "Each replica normalizes with its own rows and keeps its own moving statistics; the "
            "chief's are saved. `synchronized=True` is equal to one process."
        ),
    ),
    Case(
        group="models",
        name="dropout",
        title="`Dropout`",
        note="All replicas draw the same mask, each for its own rows.",
    ),
    Case(group="models", name="unit_normalizations", title="`LayerNormalization`, adapted `Normalization`"),
    Case(group="models", name="recurrent", title="`Embedding`, `GRU`"),
    Case(group="optimizers", name="schedule", title="learning rate schedule"),
    Case(
        group="optimizers",
        name="clipped_gradients",
        title="`global_clipnorm`",
        note=(
            "Keras clips on each replica, before gradients are added: the result is exactly that, and"
            " not what one process computes."
        ),
    ),
    Case(group="optimizers", name="mixed_bfloat16", title="`mixed_bfloat16`", tolerance=1e-2),
    Case(
        group="optimizers",
        name="mixed_float16",
        title="`mixed_float16`, loss scale that grows",
        tolerance=1e-3,
    ),
    Case(group="optimizers", name="gradient_accumulation", title="`gradient_accumulation_steps`"),
    Case(group="optimizers", name="moving_average", title="moving average of the weights (`use_ema`)"),
    Case(
        group="overflow",
        name="float16_overflow",
        title="`mixed_float16`, overflow on one replica",
        tolerance=1e-3,
    ),
    Case(group="callbacks", name="learning_rate_scheduler", title="`LearningRateScheduler`"),
    Case(group="callbacks", name="early_stopping", title="`EarlyStopping`, `restore_best_weights`"),
    Case(group="callbacks", name="reduce_lr_on_plateau", title="`ReduceLROnPlateau`"),
    Case(group="callbacks", name="lambda_callback", title="logs of every batch"),
    Case(group="callbacks", name="model_checkpoint", title="`OnChief(ModelCheckpoint(...))`"),
    Case(group="callbacks", name="csv_logger", title="`OnChief(CSVLogger(...))`"),
    Case(group="callbacks", name="tensorboard", title="`OnChief(TensorBoard(...))`"),
    Case(group="saving", name="save_and_load", title="`save` on all workers, `load_model`, go on training"),
    Case(group="saving", name="save_on_chief", title="`save` on the chief alone"),
    Case(group="saving", name="load_without_strategy", title="`load_model` without a strategy"),
    Case(group="saving", name="save_weights", title="`save_weights`, `load_weights`"),
    Case(group="saving", name="export", title="`export`"),
    Case(group="saving", name="tf_checkpoint", title="`tf.train.Checkpoint`"),
    Case(
        group="jit",
        name="jit_compile",
        title="`jit_compile=True`",
        note=(
            "On CPUs: TensorFlow has no XLA collectives there, and no XLA function over the variables "
            "of two devices; the error says so, and what to do. Accelerators have not been tried."
        ),
        refused={
            "workers": "jit_compile=True on 2 replicas on CPUs: .*HINT: ",
            "devices": "jit_compile=True on 2 replicas on CPUs: .*HINT: ",
        },
    ),
)


SETTINGS = ("workers", "devices")

_BEGIN = "<!-- matrix: written by keras_matrix_table.py --write -->\n"
_END = "<!-- end of matrix -->\n"


def cases_of(group: str) -> list[Case]:
    return [case for case in CASES if case.group == group]


def as_markdown() -> str:
    """The table of docs/keras.md, with its notes."""
    noted = [case for case in CASES if case.note]
    rows = ["| case | 2 workers | 1 process, 2 devices |", "|---|---|---|"]
    for case in CASES:
        mark = f" ({noted.index(case) + 1})" if case.note else ""
        rows.append(f"| {case.title}{mark} | " + " | ".join(_cell(case, one) for one in SETTINGS) + " |")
    notes = [f"{number}. {case.note}" for number, case in enumerate(noted, start=1)]
    return "\n".join([*rows, "", *notes]) + "\n"


def _cell(case: Case, setting: str) -> str:
    if setting in case.refused:
        return "refused"
    return "equal" if case.tolerance == 1e-6 else f"equal to {case.tolerance:g}"


def with_table(page: str) -> str:
    """The page with its table as it has to be.

    Raises:
        ValueError: the page has not the two lines between which the table stands.
    """
    before, found, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not found or not end:
        raise ValueError(f"{PAGE.name} has no table: expected the lines {_BEGIN!r} and {_END!r}.")
    return f"{before}{_BEGIN}\n{as_markdown()}\n{_END}{after}"


def main(*arguments: str) -> int:
    page = PAGE.read_text(encoding="utf-8")
    wanted = with_table(page)
    if arguments == ("--write",):
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    if page != wanted:
        print(f"{PAGE.name} is out of date; HINT: python -m {__spec__.name} --write", file=sys.stderr)
    return int(page != wanted)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
