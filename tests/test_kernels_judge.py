"""The vocabulary's totals and gradients without logits in memory, in CUDA C++ run on the host, against float64."""

from __future__ import annotations

import pytest
import torch
from kernel_truth import exact, off
from test_kernels_native import PLACE, near, runs  # noqa: F401 (a fixture)

from electra.kernels import judge, native
from electra.objective.corrupt import NEVER


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("rows", "blocks", "processors", "scale"),
    [(300, 3, 4, 1.0), (128, 5, 132, 1.0), (70, 7, 3, 40.0), (513, 2, 1, 1.0), (1, 1, 132, 0.1)],
)
def test_totals_and_gradients(
    rows: int, blocks: int, processors: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of threads with many rows, and rows with many of them; logits whose powers are out of all bounds."""
    x, table = PLACE.numbers(rows, 128, seed=1), PLACE.numbers(blocks * 128, 128, seed=2, scale=0.3 * scale)
    if not native.can_run(x, judge.FORWARD):
        pytest.skip("for Hopper GPUs")
    monkeypatch.setattr(native, "processors", lambda device: processors)
    bias = PLACE.numbers(blocks * 128, seed=3)
    bias[-40:] = NEVER
    logits = exact(x) @ exact(table).T + exact(bias)
    totals = judge.block_totals(x, table, bias)
    assert totals.shape == (rows, blocks)
    assert off(totals, logits.unflatten(1, (blocks, 128)).logsumexp(2)) < 2e-6

    level = logits.logsumexp(1)
    gold = torch.linspace(0, blocks * 128 - 41, rows).round().long()
    weights = torch.linspace(-1, 2, rows)
    want = (logits - level[:, None]).exp()
    want[torch.arange(rows), gold] -= 1
    want *= weights.double()[:, None]
    given = (tensor.to(PLACE.device) for tensor in (gold, level.float(), weights))
    d_logits, d_x, lines = judge.go_back(x, table, bias, *given)
    near(d_logits, want, roundings=1)
    near(d_x, exact(d_logits) @ exact(table), roundings=2)
    assert off(lines.sum(0), want.sum(0)) < 1e-4
