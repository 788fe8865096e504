"""Muon and the generator's own rate and clip, against steps worked out in float64."""

from __future__ import annotations

import math
from dataclasses import replace

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


def test_layer_matrices_move_by_their_orthogonal_average_and_the_rest_by_adamw() -> None:
    optim = OptimConfig(matrices="muon", beta1=0.9, weight_decay=0.1, clip=1e9)
    config = tiny_config(optim=optim, generator=GeneratorConfig(width=0.5, lr_scale=0.25))
    steps, lr = [random_gradients(config, seed) for seed in range(3)], 0.01
    before = dict(make_model(config).named_parameters())
    got, _ = updated(config, steps, lr)
    by_adamw, _ = updated(replace(config, optim=replace(optim, matrices="adamw")), steps, lr)
    moved = 0
    for name, start in before.items():
        if not is_layer_matrix(name):
            torch.testing.assert_close(got[name], by_adamw[name], rtol=0, atol=0)
            continue
        moved += 1
        rate = lr * (0.25 if name.startswith("generator") else 1.0)
        pieces = []
        for part in range(3 if "qkv" in name else 1):
            rows = start.shape[0] // (3 if "qkv" in name else 1)
            block = slice(part * rows, (part + 1) * rows)
            w, average = start[block].detach().double(), torch.zeros(rows, start.shape[1], dtype=torch.float64)
            for step in steps:
                g = step[name][block].double()
                average = 0.9 * average + 0.1 * g
                o = orthogonal((0.9 * average + 0.1 * g)[None])[0]
                w = w - rate * (0.2 * math.sqrt(max(w.shape)) * o + 0.1 * w)
            pieces.append(w)
        torch.testing.assert_close(got[name].double(), torch.cat(pieces), rtol=1e-4, atol=1e-6)
    assert moved == 2 * 2 * 4, "four matrices a layer, two layers, two encoders"


def test_a_step_that_is_not_finite_changes_nothing() -> None:
    config = tiny_config(optim=OptimConfig(matrices="muon"), generator=GeneratorConfig(width=0.5, clip=1.0))
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
