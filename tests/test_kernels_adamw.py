"""AdamW in one launch against torch's own, group by group; the gradient's norm and the totals of a step."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="the kernels are written in Triton")

import torch
from kernel_truth import HERE, exact

from electra.kernels import verdict
from electra.kernels.adamw import Groups, adamw

SETTINGS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}


@pytest.mark.parametrize(
    "ends",
    [
        (5000,),
        (1200, 1201, 3000, 5000),
        (1024, 2048, 4096, 4999, 5000),
        tuple(range(77, 5000, 77)),  # as many groups as fine-tuning a large model has
    ],
)
@pytest.mark.parametrize("skip", [False, True])
def test_one_launch_does_what_a_call_a_group_does(ends: tuple[int, ...], skip: bool) -> None:
    draw = torch.Generator().manual_seed(len(ends))
    weights, gradient, average = torch.randn(3, ends[-1], generator=draw)
    square = torch.rand(ends[-1], generator=draw)
    lr, divisor, skipped = torch.tensor(1e-2), torch.tensor(3.0), torch.tensor(float(skip))
    groups = [(end, 1.0 / (1 + number), 0.01 * (number % 2)) for number, end in enumerate(ends)]
    expected = [tensor.clone() for tensor in (weights, average, square)]
    start = 0
    for end, rate, decay in groups:
        part = slice(start, end)
        torch._fused_adamw_(
            [expected[0][part]], [gradient[part].clone()], [expected[1][part]], [expected[2][part]], [],
            [torch.tensor(1e9)], lr=lr * rate, weight_decay=decay, amsgrad=False, maximize=False,
            grad_scale=divisor, found_inf=skipped, **SETTINGS,
        )  # fmt: skip
        start = end

    moved = [tensor.to(HERE.device) for tensor in (weights, gradient, average, square)]
    copy = torch.full((2500,), 7.0, device=HERE.device)
    adamw(
        *moved, Groups(groups, HERE.device), lr=lr.to(HERE.device), divisor=divisor.to(HERE.device),
        skipped=skipped.to(HERE.device), copy=copy, copied=slice(700, 3200), **SETTINGS,
    )  # fmt: skip
    for got, want in zip((moved[0], moved[2], moved[3]), expected, strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-6)
    assert torch.equal(copy, torch.full_like(copy, 7.0) if skip else moved[0][700:3200])


@pytest.mark.parametrize(("count", "most"), [(1, 1024), (4096, 1024), (9000, 1), (30_000, 3)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_the_norm_of_a_gradient(count: int, most: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST_PROGRAMS", most)
    gradient = torch.randn(count, generator=torch.Generator().manual_seed(count)) * scale
    norm, skipped, divisor = verdict.judge(gradient.to(HERE.device), clip=2.0)
    true = float(exact(gradient).norm())
    assert norm.shape == skipped.shape == divisor.shape == () and norm.item() == pytest.approx(true, rel=2e-6)
    assert skipped.item() == 0 and divisor.item() == pytest.approx(max(true / 2.0, 1.0), rel=2e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_norm_that_is_not_finite(bad: float) -> None:
    gradient = torch.ones(5000, device=HERE.device)
    gradient[4321] = bad
    norm, skipped, _ = verdict.judge(gradient, clip=1.0)
    assert skipped.item() == 1 and not norm.isfinite()


@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_totals_grow_by_a_step(skip: float) -> None:
    sums = torch.tensor([1.5, torch.nan, 3.0, torch.inf, -torch.inf], device=HERE.device)
    totals = torch.arange(7.0, dtype=torch.float64, device=HERE.device)
    kept, norm = torch.zeros((), device=HERE.device), torch.tensor(4.25, device=HERE.device)
    verdict.tally(totals, kept, sums, norm=norm, skipped=torch.tensor(skip, device=HERE.device))
    grown = [1.5 * (1 - skip), 0, 3.0 * (1 - skip), 0, 0, 1, skip]
    assert totals.tolist() == [number + more for number, more in enumerate(grown)] and kept.item() == 4.25
