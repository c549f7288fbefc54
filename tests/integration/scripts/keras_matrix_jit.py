"""Compiling the whole step with XLA; a group of its own, as no collective works after the refusal."""

from __future__ import annotations

from tests.integration.scripts.keras_matrix_parts import Arrays, Setting, X, Y, batches, fitted, small_model


def jit_compile(setting: Setting) -> Arrays:
    return fitted(small_model(setting, jit_compile=True), batches(X, Y))
