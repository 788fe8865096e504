"""Recording GPU work: what must hold meanwhile."""

from __future__ import annotations

import gc

import pytest

from electra.train.capture import _nothing_collected


@pytest.mark.parametrize("collecting", [True, False])
def test_nothing_is_collected_meanwhile_and_all_is_as_before_afterwards(collecting: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collecting else gc.disable)()
        with pytest.raises(ValueError, match="the recording failed"), _nothing_collected():
            assert not gc.isenabled()
            raise ValueError("the recording failed")
        assert gc.isenabled() == collecting
    finally:
        (gc.enable if before else gc.disable)()
