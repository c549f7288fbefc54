"""All programs of the matrix, by name."""

from __future__ import annotations

from tests.exactness.fit_programs import FITS
from tests.exactness.lives import Program
from tests.exactness.loop_programs import LOOPS
from tests.exactness.several_fits import SEVERAL

PROGRAMS: dict[str, Program] = {**FITS, **SEVERAL, **LOOPS}
