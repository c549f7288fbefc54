"""Calls a training function with its checkpoint directory; one life of a training in a drill.

``python -m tf_preempt.testing.children.call_train_function FILE``, as `write_function` has written it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from tf_preempt.checkpointing.directory import OVERRIDE
from tf_preempt.errors import ConfigError
from tf_preempt.testing.train_function import read_function

__all__ = ["main"]


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Calls the function.

    Args:
        argv: the file.
        environ: the environment variables.

    Raises:
        ConfigError: TF_PREEMPT_DIR_OVERRIDE is not set.
        Exception: whatever the function raises.

    Environment:
        TF_PREEMPT_DIR_OVERRIDE: the checkpoint directory, which the function gets.
    """
    directory = environ.get(OVERRIDE)
    if not directory:
        raise ConfigError(
            f"{OVERRIDE} is not set: expected the checkpoint directory of this training.",
            hint="call tf_preempt.testing.assert_resume_equivalent, which starts this program.",
        )
    read_function(argv[0])(directory)


if __name__ == "__main__":
    main(sys.argv[1:])
