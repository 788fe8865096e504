"""Loss and sample over the vocabulary by loops in C++: float64's loss and gradient, the plain path's samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tiny import SPECIALS, ragged_rows, tiny_config
from torch import Tensor

from electra.batches.sequences import unpack
from electra.kernels.host import library
from electra.kernels.host.vocabulary import judge
from electra.model.electra import build_model
from electra.objective.corrupt import BLOCK, NEVER, sample
from electra.objective.table import build_objective

pytestmark = pytest.mark.skipif(not library.usable(torch.empty(1)), reason="needs g++ on Linux")
KINDS = (torch.float32, torch.bfloat16)


def random(rows: int, blocks: int, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Logits whose last entries are never picked, gold entries and keys."""
    generator = torch.Generator().manual_seed(rows)
    logits = (torch.randn(rows, blocks * BLOCK, generator=generator) * 3).to(kind)
    logits[:, -40:-1] = NEVER
    logits[0] += 50
    gold = torch.linspace(0, blocks * BLOCK - 1, rows).round().long()
    keys = torch.randint(-(2**31), 2**31, (rows,), generator=generator).to(torch.int32)
    return logits, gold, keys


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "blocks"), [(5, 3), (1, 1), (37, 9)])
def test_losses_gradients_and_samples(rows: int, blocks: int, kind: torch.dtype) -> None:
    logits, gold, keys = random(rows, blocks, kind)
    weights = torch.linspace(-1, 2, rows)
    source = logits.double().requires_grad_()
    want = F.cross_entropy(source, gold, reduction="none")
    (wanted,) = torch.autograd.grad(want, source, weights.double())
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        given = logits.clone().requires_grad_()
        loss, sampled = judge(given, gold, keys)
        loss.backward(weights)
        torch.testing.assert_close(loss.double(), want, rtol=1e-6, atol=4e-6)
        assert given.grad is not None and given.grad.dtype == kind
        allowed = (4e-6 if kind == torch.float32 else 2**-8) * wanted.abs() + 1e-7
        assert ((given.grad.double() - wanted).abs() <= allowed).all()
        assert sampled is not None and not sampled.requires_grad
        assert torch.equal(sampled, sample(logits.float().log_softmax(1), keys))
    torch.set_num_threads(threads)
    assert judge(logits, gold, None)[1] is None


def test_samples_follow_the_distribution() -> None:
    row = torch.full((1, 2 * BLOCK), -torch.inf)
    row[0, [3, 130, 255]] = torch.tensor([0.5, 0.3, 0.2]).log()
    keys = torch.arange(4000, dtype=torch.int32)
    _, sampled = judge(row.expand(4000, -1), torch.zeros(4000, dtype=torch.long), keys)
    assert sampled is not None
    shares = torch.bincount(sampled, minlength=2 * BLOCK) / 4000
    assert shares[3] + shares[130] + shares[255] == 1
    torch.testing.assert_close(shares[[3, 130, 255]], torch.tensor([0.5, 0.3, 0.2]), rtol=0, atol=0.03)


def test_what_is_not_a_number_is_a_loss_of_none() -> None:
    logits, gold, keys = random(4, 2, torch.float32)
    logits[1, 7], logits[2, 9] = torch.nan, torch.inf
    loss, sampled = judge(logits, gold, keys)
    assert loss.isnan().tolist() == [False, True, True, False]
    assert sampled is not None and (sampled >= 0).all() and (sampled < logits.shape[1]).all()


def test_a_step_with_and_without_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole objective: the same samples, and the same loss and gradients within rounding."""
    config = tiny_config(dropout=0.1)
    model, objective = build_model(config), build_objective(config, SPECIALS)
    batch = unpack(ragged_rows(4))
    slots = objective.plan(batch)
    found = []
    for wanted in (True, False):
        monkeypatch.setattr(library, "_wanted", wanted)
        outcome = objective.loss(model, batch, slots, objective.counts(batch, slots))
        gradients = torch.autograd.grad(outcome.loss, list(model.parameters()))
        found.append((outcome.loss.detach(), outcome.sums, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
