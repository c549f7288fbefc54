"""The parts of ``tf-preempt doctor``: one module per group of checks.

Each has pure functions that turn facts into `Finding`s, and, where the facts have to be fetched, a thin
reader.
"""
