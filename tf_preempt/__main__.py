"""``python -m tf_preempt`` is ``tf-preempt``."""

from __future__ import annotations

from tf_preempt.cli.main import main

if __name__ == "__main__":
    main()
