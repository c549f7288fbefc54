"""Runs a program whose MNIST is a generated file: ``with_generated_mnist.py PROGRAM [ARGUMENT ...]``.

Keras checks the SHA-256 of the MNIST that it finds, and downloads another if it is not the one; no generated
file can have it.  The program itself is not changed.
"""

from __future__ import annotations

import runpy
import sys

from keras.src.utils import file_utils

file_utils.validate_file = lambda *arguments, **options: True
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
