"""Run one of the kernels in CUDA C++ on the host under the race detector; `test_kernels_native` reads the log.

python race_kernels.py attention|narrow|feed|wide|norm|judge
"""

from __future__ import annotations

import sys

import pytest
import test_kernels_native as tests
from emulated import emulate
from test_kernels_judge import test_totals_and_gradients

from electra.kernels import judge, narrow, wide

with pytest.MonkeyPatch.context() as patch:
    patch.setattr(narrow, "FEWEST_TEXTS", 1)
    patch.setattr(wide, "FEWEST_TOKENS", 1)
    # The detector may not know more than 500 threads at once: some kernels' blocks get half.
    most = 256 if sys.argv[1] in ("narrow", "norm") else 384
    for name in ("THERE", "BACK"):
        patch.setattr(judge, name, 2)
    fewer = ("-DBANDS=4", "-DWARPS=8", "-DTHERE=2", "-DBACK=2")
    emulate(patch, "-fsanitize=thread", "-O1", *fewer, most_threads=most)
    if sys.argv[1] == "attention":
        tests.test_attention(100, 1, (90, 100, 40), 0.1, 3, None, patch)
    elif sys.argv[1] == "narrow":
        tests.test_narrow_layers(61, (50,), 0.1, 0.1, 2, 24, None, patch)
    elif sys.argv[1] == "wide":
        tests.test_wide_layers(70, (50,), 0.1, 0.1, 1, 12, None, patch)
    elif sys.argv[1] == "judge":
        test_totals_and_gradients(200, 3, 2, 1.0, patch)
    elif sys.argv[1] == "norm":
        tests.test_norm_on_its_way_back(3, 31, 0.3, 1, None, patch)
    else:
        tests.test_products_with_the_gelu(400, 128, 1, None, patch)
print("done")
