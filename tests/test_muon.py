"""Muon, NorMuon and the generator's own rate and clip, against steps worked out in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from tiny import Trainer, make_model, ragged_rows, tiny_config
from torch import Tensor

from electra.config.schema import Config, GeneratorConfig, OptimConfig
from electra.ops.dispatch import host_ops
from electra.train.muon import is_layer_matrix, orthogonal
from electra.train.optim import Update, make_update, scales
from electra.train.state import Master

CPU = torch.device("cpu")


def random_matrices(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 48), (2, 48, 16)])
def test_singular_vectors_stay_and_singular_values_come_near_1(shape: tuple[int, int, int]) -> None:
    x = random_matrices(*shape)
    got = orthogonal(x)
    u, values, v = torch.linalg.svd(x.double(), full_matrices=False)
    among = u.mT @ got.double() @ v.mT
    strengths = among.diagonal(dim1=1, dim2=2)
    large = values > 0.1 * values[:, :1]  # smaller ones need more rounds
    assert strengths[large].min() > 0.6 and strengths[large].max() < 1.25
    torch.testing.assert_close(among, torch.diag_embed(strengths), atol=2e-4, rtol=0)


def test_a_gradient_of_zeros_moves_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(1, 4, 8)), torch.zeros(1, 4, 8))


def updated(config: Config, gradients: list[dict[str, Tensor]], lr: float) -> tuple[dict[str, Tensor], list[float]]:
    """Weights after steps with these gradients, and which steps were skipped."""
    model = make_model(config)
    master = Master(model, compute=torch.float32, device=CPU, scale=scales(config.optim, config.generator))
    update = make_update(master, config.optim, config.generator, ops=host_ops())
    update.lr.fill_(lr)
    skipped = []
    for step in gradients:
        for name, parameter in model.named_parameters():
            parameter.grad = step[name].clone()
        master.collect(first=True)
        skipped.append(update().skipped.item())
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}, skipped


def random_gradients(config: Config, seed: int, scale: float = 1e-3) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(p.shape, generator=generator) for name, p in make_model(config).named_parameters()
    }


@pytest.mark.parametrize("clip", [1e9, 0.1])
def test_layer_matrices_move_by_their_orthogonal_average_and_the_rest_by_adamw(clip: float) -> None:
    optim = OptimConfig(matrices="muon", beta1=0.9, weight_decay=0.1, clip=clip)
    config = tiny_config(optim=optim, generator=GeneratorConfig(width=0.5, lr_scale=0.25))
    steps, lr = [random_gradients(config, seed, scale=2e-3 * 4**seed) for seed in range(3)], 0.01
    norms = [math.hypot(*(float(one.double().norm()) for one in step.values())) for step in steps]
    clipped = [max(1.0, norm / clip) for norm in norms]
    before = dict(make_model(config).named_parameters())
    got, _ = updated(config, steps, lr)
    by_adamw, _ = updated(replace(config, optim=replace(optim, matrices="adamw")), steps, lr)
    moved = 0
    for name, start in before.items():
        if not is_layer_matrix(name):
            off = 0 if clip > 1 else 1e-6  # the norm adds up in another order
            torch.testing.assert_close(got[name], by_adamw[name], rtol=0, atol=off)
            continue
        moved += 1
        rate = lr * (0.25 if name.startswith("generator") else 1.0)
        pieces = []
        for part in range(3 if "qkv" in name else 1):
            rows = start.shape[0] // (3 if "qkv" in name else 1)
            block = slice(part * rows, (part + 1) * rows)
            w, average = start[block].detach().double(), torch.zeros(rows, start.shape[1], dtype=torch.float64)
            for step, divisor in zip(steps, clipped, strict=True):
                g = step[name][block].double() / divisor
                average = 0.9 * average + 0.1 * g
                o = orthogonal((0.9 * average + 0.1 * g)[None])[0]
                w = w - rate * (0.2 * math.sqrt(max(w.shape)) * o + 0.1 * w)
            pieces.append(w)
        torch.testing.assert_close(got[name].double(), torch.cat(pieces), rtol=1e-4, atol=1e-6)
    assert moved == 2 * 2 * 4, "four matrices a layer, two layers, two encoders"


def by_the_paper(w: Tensor, gradients: list[Tensor], *, rate: float) -> Tensor:
    """A matrix after NorMuon's steps with decay 0.1, row by row, from the paper's listing alone."""
    average, v = torch.zeros_like(w), torch.zeros(len(w), dtype=w.dtype)
    for g in gradients:
        average = 0.9 * average + 0.1 * g
        o = 0.9 * average + 0.1 * g
        o = o / o.norm()
        for _ in range(5):
            o = 3.4445 * o - 4.7750 * o @ o.T @ o + 2.0315 * o @ o.T @ o @ o.T @ o
        v = torch.stack([0.95 * v[i] + 0.05 * (row**2).mean() for i, row in enumerate(o)])
        rows = torch.stack([row / v[i].sqrt() for i, row in enumerate(o)])
        rows = rows * o.norm() / rows.norm()
        w = w - rate * (0.2 * math.sqrt(max(w.shape)) * rows + 0.1 * w)
    return w


def test_normuon_divides_each_row_by_the_root_of_its_mean_square() -> None:
    optim = OptimConfig(matrices="normuon", beta1=0.9, weight_decay=0.1, clip=1e9)
    config = tiny_config(optim=optim, generator=GeneratorConfig(width=0.5, lr_scale=0.25))
    steps, lr = [random_gradients(config, seed) for seed in range(3)], 0.01
    for step in steps:  # rows of unlike sizes, which orthogonal updates mostly keep
        for name in step:
            step[name].mul_(torch.linspace(0.05, 1, len(step[name])).view(-1, *[1] * (step[name].dim() - 1)))
    got, _ = updated(config, steps, lr)
    plain, _ = updated(replace(config, optim=replace(optim, matrices="muon")), steps, lr)
    for name, start in make_model(config).named_parameters():
        if not is_layer_matrix(name):
            assert torch.equal(got[name], plain[name])
            continue
        rate, parts = lr * (0.25 if name.startswith("generator") else 1.0), 3 if "qkv" in name else 1
        gradients = [step[name].double().chunk(parts) for step in steps]
        pieces = [
            by_the_paper(w, [g[number] for g in gradients], rate=rate)
            for number, w in enumerate(start.detach().double().chunk(parts))
        ]
        torch.testing.assert_close(got[name].double(), torch.cat(pieces), rtol=1e-4, atol=1e-6)
        assert (got[name] - plain[name]).norm() > 0.02 * (got[name] - start).norm(), "another update than Muon's"


@pytest.mark.parametrize("skipping", [False, True])
def test_normuon_goes_on_from_its_saved_tensors_bit_for_bit(skipping: bool) -> None:
    config = tiny_config(optim=OptimConfig(matrices="normuon"), generator=GeneratorConfig(width=0.5))
    steps = [random_gradients(config, seed) for seed in range(4)]
    if skipping:
        steps[1]["discriminator.layers.0.up.weight"][0, 0] = math.nan

    def train(gradients: list[dict[str, Tensor]], saved: dict[str, dict[str, Tensor]] | None) -> Master:
        model = make_model(config)
        master = Master(model, compute=torch.float32, device=CPU, scale=scales(config.optim, config.generator))
        if saved is not None:
            master.load(saved)
        update = make_update(master, config.optim, config.generator, ops=host_ops())
        update.lr.fill_(0.01)
        for step in gradients:
            for name, parameter in model.named_parameters():
                parameter.grad = step[name].clone()
            master.collect(first=True)
            update()
        return master

    whole, begun = train(steps, None), train(steps[:2], None)
    resumed = train(steps[2:], begun.tensors())
    assert all(torch.equal(one, other) for one, other in zip(whole.buffers, resumed.buffers, strict=True))
    assert torch.isfinite(whole.weights).all()


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("matrices", ["muon", "normuon"])
def test_a_step_that_is_not_finite_changes_nothing(matrices: Literal["muon", "normuon"], clip: float) -> None:
    config = tiny_config(optim=OptimConfig(matrices=matrices), generator=GeneratorConfig(width=0.5, clip=clip))
    good, bad = random_gradients(config, 1), random_gradients(config, 2)
    bad["discriminator.layers.0.up.weight"][0, 0] = math.inf
    also_bad = random_gradients(config, 3)
    also_bad["generator.layers.0.up.weight"][0, 0] = math.nan
    once, _ = updated(config, [good], 0.01)
    thrice, skipped = updated(config, [good, bad, also_bad], 0.01)
    assert skipped == [0.0, 1.0, 1.0]
    assert all(torch.equal(once[name], thrice[name]) for name in once)


@pytest.mark.parametrize(("own", "rest"), [(0.5, 0.5), (40.0, 0.5), (0.5, 30.0), (7.0, 9.0)])
def test_the_generators_gradient_is_clipped_by_its_own_norm(own: float, rest: float) -> None:
    optim = OptimConfig(clip=1.0)
    config = tiny_config(optim=optim, generator=GeneratorConfig(width=0.5, clip=2.0))
    model = make_model(config)
    master = Master(model, compute=torch.float32, device=CPU, scale=scales(config.optim, config.generator))
    update = make_update(master, optim, config.generator, ops=host_ops())
    gradients = random_gradients(config, 5, 1.0)
    for generates, size in ((True, own), (False, rest)):
        chosen = [g for name, g in gradients.items() if name.startswith("generator") == generates]
        length = math.sqrt(sum(float(g.double().square().sum()) for g in chosen))
        for g in chosen:
            g.mul_(size / length)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clone()
    master.collect(first=True)
    norm = update()
    assert norm.norm.item() == pytest.approx(rest, rel=1e-5), "the log shows the discriminator's"
    for name, average in master.tensors()["average"].items():
        divisor = max(1.0, own / 2.0) if name.startswith("generator") else max(1.0, rest)
        torch.testing.assert_close(average, 0.1 * gradients[name] / divisor, rtol=1e-4, atol=1e-9)


def test_without_these_options_the_update_is_the_plain_one_bit_for_bit() -> None:
    config = tiny_config()
    one, other = Trainer(config, micro=8), Trainer(config, micro=8)
    one.step._update = make_update(one.master, config.optim, config.generator, ops=host_ops())
    other.step._update = Update(other.master, config.optim, ops=host_ops())
    for seed in range(3):
        for trainer in (one, other):
            trainer.step(ragged_rows(8, seed=seed), 1e-3)
    assert torch.equal(one.master.weights, other.master.weights)
