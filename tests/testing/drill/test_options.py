import math

import pytest

from tf_preempt.errors import ConfigError
from tf_preempt.testing.drill.options import DrillOptions


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": []}, r"command=\[\] \(of the drill\) must be a program and its arguments"),
        ({"kills": 0}, "kills=0 .* 1 or more"),
        ({"kills": True}, "kills=True "),
        ({"seed": -1}, "seed=-1 .* 0 or more"),
        ({"workers": 0}, "workers=0 .* or None"),
        ({"signals": ()}, r"signals=\(\) .* one or more of TERM, KILL"),
        ({"signals": ("TERM", "HUP")}, "signals=.*'HUP'"),
        ({"restart_codes": frozenset({256})}, "restart_codes=.*256"),
        ({"stall_timeout_s": 0.0}, "stall_timeout_s=0.0 "),
        ({"stall_timeout_s": math.nan}, "stall_timeout_s=nan "),
        ({"kills": 2, "at_steps": (1,)}, r"(?s)at_steps=\(1,\) .* 2 steps \(kills\).*HINT"),
        ({"kills": 1, "at_steps": (-1,)}, r"at_steps=\(-1,\) "),
    ],
)
def test_value_out_of_range_is_named(options, words):
    with pytest.raises(ConfigError, match=words):
        DrillOptions(**{"command": ["x"], **options})
