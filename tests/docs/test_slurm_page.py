"""What docs/slurm.md gives to search a job's output with finds what a training says of its end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/slurm.md").read_text(encoding="utf-8")
PATTERNS = re.findall(r"^grep -E '(.+)' slurm-12\.out$", PAGE, re.MULTILINE)
SAID = {
    "checkpointing/session.py": [
        "Notice on worker %d: %s (%s).",
        "Training was complete when %s came; it is saved.",
        "Another worker is lost (%s); leaving for a restart.",
    ],
    "checkpointing/asking.py": ["Worker %d was given notice: %s."],
    "checkpointing/leaving.py": ["%s Leaving with exit status %d."],
    "checkpointing/departure.py": ["Slurm has not ended this process within %.0f s."],
    "checkpointing/committer.py": ["Checkpoint %s in %s is damaged (%s);"],
    "callbacks/protected_fit.py": ["Training is complete already (%d epochs): nothing is trained."],
    "termination/slurm.py": ["Slurm job %s, run %d: %s.", "Slurm could not be asked about job %d: %s"],
    "termination/standby.py": [
        "SIGTERM came %s; the program ends as soon as",
        "SIGTERM came again, and ends the program at once.",
        "Nothing says which job this is, so it is not requeued: %s",
    ],
}


@pytest.mark.parametrize(
    ("source", "text"), [(source, text) for source, texts in SAID.items() for text in texts]
)
def test_a_line_without_our_name_is_found(source: str, text: str) -> None:
    assert text in (ROOT / "tf_preempt" / source).read_text(encoding="utf-8")
    (pattern,) = PATTERNS
    assert re.search(pattern, text)


def test_a_line_of_tensorflow_is_not_found() -> None:
    (pattern,) = PATTERNS
    assert not re.search(pattern, "BaseCollectiveExecutor::StartAbort UNAVAILABLE: Task is gone")
