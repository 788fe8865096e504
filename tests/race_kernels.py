"""Run every kernel in CUDA C++ on the host under the race detector, for `test_kernels_native`, which reads the log."""

from __future__ import annotations

import pytest
import test_kernels_native as tests
from emulated import emulate

from electra.kernels import narrow

with pytest.MonkeyPatch.context() as patch:
    patch.setattr(narrow, "FEWEST_TEXTS", 1)
    emulate(patch, "-fsanitize=thread", "-O1")
    tests.test_attention(100, 1, (90, 100, 40), 0.1, 3, None, patch)
    tests.test_a_narrow_layer(100, (90,), 0.1, 0.1, None)
    tests.test_products_with_the_gelu(400, 128, 1, None, patch)
print("done")
