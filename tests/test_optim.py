"""The optimiser against hand-computed steps, and the flat buffers that it works on."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import Trainer, ragged_rows, tiny_config
from torch import Tensor, nn

from electra.config.schema import ObjectiveConfig, OptimConfig
from electra.model.electra import build_model
from electra.model.layers import Norm
from electra.ops.dispatch import host_ops
from electra.train.optim import Update
from electra.train.state import Master, _runs

CPU = torch.device("cpu")
NO_NATIVE_BF16 = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # such a CPU computes it all the same
NO_CLIP = OptimConfig(clip=1e9)


class Parts(nn.Module):
    """One parameter of each kind: a table, a matrix with its bias, a norm, and a bias that stands alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(3, 2)
        self.dense = nn.Linear(2, 2)
        self.norm = Norm(2)
        self.head = nn.Module()
        self.head.bias = nn.Parameter(torch.zeros(3))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(generator=generator)


def give(master: Master, model: nn.Module, gradients: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clone().to(parameter.dtype)
    master.collect(first=True)


def random_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(p.shape, generator=generator) * scale for name, p in model.named_parameters()}


def test_gradients_that_lie_end_to_end_in_memory_move_as_one() -> None:
    """And others do not, whatever lies beside them: backwards, apart, across, in another type or another memory."""
    flat = torch.arange(40.0)
    end_to_end = [flat[:6].view(2, 3), flat[6:10], flat[10:11].view(())]
    others = [flat[30:32], flat[28:30], flat[20:26].view(2, 3).T, flat[26:28].double(), flat[12:14].clone()]
    gradients = [*end_to_end, *others]
    found = list(_runs(gradients))
    assert [run.numel() for _, run in found] == [11, 2, 2, 6, 2, 2]
    assert [part.start for part, _ in found] == [0, 11, 13, 15, 21, 23] and found[-1][0].stop == 25
    moved = torch.cat([run.double() for _, run in found])
    assert torch.equal(moved, torch.cat([gradient.flatten().double() for gradient in gradients]))


def one_number(weight: float, *, optim: OptimConfig) -> tuple[nn.Linear, Master, Update]:
    model = nn.Sequential(nn.Linear(1, 1))
    with torch.no_grad():
        model[0].weight.fill_(weight)
        model[0].bias.fill_(weight)
    master = Master(model, compute=torch.float32, device=CPU)
    return model[0], master, Update(master, optim, ops=host_ops())


def test_two_steps_by_hand() -> None:
    """w = 0.5, gradient 0.1 then -0.2, rate 0.01, decay 0.01: worked out on paper.

    Step 1: m = 0.01, v = 1e-5, m / (sqrt v + 1e-6) = 0.01 / 0.003163278 = 3.161278,
            w = 0.5 - 0.01 (3.161278 + 0.01 * 0.5) = 0.46833722.
    Step 2: m = 0.009 - 0.02 = -0.011, v = 0.999e-5 + 4e-5 = 4.999e-5, root 0.00707036, quotient -1.5555710,
            w = 0.46833722 + 0.01 * 1.5555710 - 0.01 * 0.01 * 0.46833722 = 0.48384609.
    With bias correction the first quotient would be 1; with eps inside the root it would be 3.0151.
    """
    dense, master, update = one_number(0.5, optim=NO_CLIP)
    update.lr.fill_(0.01)
    for gradient, weight, bias in ((0.1, 0.46833722, 0.46838722), (-0.2, 0.48384609, 0.48394293)):
        dense.weight.grad, dense.bias.grad = torch.full((1, 1), gradient), torch.full((1,), gradient)
        master.collect(first=True)
        found = update()
        assert found.norm.item() == pytest.approx(abs(gradient) * math.sqrt(2)) and not found.skipped
        assert dense.weight.item() == pytest.approx(weight, abs=2e-7)
        assert dense.bias.item() == pytest.approx(bias, abs=2e-7), "a bias is not decayed"


def test_defect_the_defaults_are_the_papers() -> None:
    """Elsewhere eps 1e-8, decay 0.1 or a corrected Adam: other optimisers than the one that the results came from."""
    optim = OptimConfig()
    assert (optim.lr, optim.warmup_steps, optim.weight_decay, optim.clip) == (5e-4, 10_000, 0.01, 1.0)
    assert (optim.beta1, optim.beta2, optim.eps) == (0.9, 0.999, 1e-6)


def reference(optim: OptimConfig, decayed: bool, w: np.ndarray, gradients: list[np.ndarray], lr: float) -> np.ndarray:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for g in gradients:
        m = optim.beta1 * m + (1 - optim.beta1) * g
        v = optim.beta2 * v + (1 - optim.beta2) * g * g
        w = w - lr * (m / (np.sqrt(v) + optim.eps) + (optim.weight_decay if decayed else 0.0) * w)
    return w


def test_many_steps_of_every_kind_of_parameter() -> None:
    model = Parts()
    optim = replace(NO_CLIP, weight_decay=0.3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    master = Master(model, compute=torch.float32, device=CPU)
    update = Update(master, optim, ops=host_ops())
    update.lr.fill_(0.02)
    history = []
    for step in range(20):
        history.append(random_gradients(model, step, 10.0 ** (step % 5 - 4)))
        give(master, model, history[-1])
        update()
    decayed = {"table.weight", "dense.weight"}
    assert {name for name, _ in model.named_parameters()} - decayed == {
        "dense.bias",
        "norm.weight",
        "norm.bias",
        "head.bias",
    }
    for name, parameter in model.named_parameters():
        gradients = [step[name].double().numpy() for step in history]
        expected = reference(optim, name in decayed, before[name].double().numpy(), gradients, 0.02)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=2e-5, atol=2e-6, err_msg=name)


def test_defect_matrices_and_embeddings_decay_biases_and_norms_do_not() -> None:
    """Which parameters of the real networks shrink when only decay acts (no gradient, so nothing else moves)."""
    for name in ("rtd", "mlm"):
        config = tiny_config(objective=ObjectiveConfig(name=name))
        model = build_model(config, ops=host_ops())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1.0)
        master = Master(model, compute=torch.float32, device=CPU)
        update = Update(master, OptimConfig(weight_decay=0.5), ops=host_ops())
        update.lr.fill_(0.1)
        give(master, model, {n: torch.zeros_like(p) for n, p in model.named_parameters()})
        update()
        for path, parameter in model.named_parameters():
            exempt = path.endswith("bias") or "norm" in path
            assert torch.equal(parameter, torch.full_like(parameter, 1.0 if exempt else 0.95)), path
        assert any(n == "generator_head.bias" or n == "head.bias" for n, _ in model.named_parameters())


@pytest.mark.parametrize(("scale", "clipped"), [(0.5, False), (2.0, True), (1e6, True)])
def test_the_global_norm_is_clipped_to_1(scale: float, clipped: bool) -> None:
    model = Parts()
    gradients = random_gradients(model, 3)
    length = math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients.values()))
    gradients = {name: g * (scale / length) for name, g in gradients.items()}
    master = Master(model, compute=torch.float32, device=CPU)
    update = Update(master, OptimConfig(), ops=host_ops())
    update.lr.fill_(0.01)
    give(master, model, gradients)
    assert update().norm.item() == pytest.approx(scale, rel=1e-5), "the norm before clipping"
    # After one step from zero the average holds a tenth of the clipped gradient.
    averages = master.tensors()["average"]
    factor = 0.1 / scale if clipped else 0.1
    for name, gradient in gradients.items():
        torch.testing.assert_close(averages[name], gradient * factor, rtol=1e-4, atol=1e-9)
    assert master.average.norm().item() == pytest.approx(0.1 * min(1.0, scale), rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_non_finite_gradient_changes_nothing(bad: float) -> None:
    model = Parts()
    master = Master(model, compute=torch.bfloat16, device=CPU)
    update = Update(master, OptimConfig(), ops=host_ops())
    update.lr.fill_(0.01)
    give(master, model, random_gradients(model, 1))
    update()
    before = [t.clone() for t in (master.weights, master.average, master.square)]
    computing = [p.detach().clone() for p in model.parameters()]
    for name in ("table.weight", "dense.weight", "head.bias"):
        gradients = random_gradients(model, 2)
        gradients[name].view(-1)[0] = bad
        give(master, model, gradients)
        assert update().skipped.item() == 1.0
        for tensor, was in zip((master.weights, master.average, master.square), before, strict=True):
            assert torch.equal(tensor, was)
        assert all(torch.equal(p, was) for p, was in zip(model.parameters(), computing, strict=True))
    give(master, model, random_gradients(model, 2))
    assert update().skipped.item() == 0.0
    assert not torch.equal(master.weights, before[0]), "the next good step counts again"


@pytest.mark.parametrize("name", ["rtd", "mlm"])
def test_defect_every_parameter_is_trained(name: str) -> None:
    """Elsewhere the group without decay came out empty: no bias or norm was ever trained."""
    trainer = Trainer(tiny_config(objective=ObjectiveConfig(name=name)), micro=8)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    held = trainer.master.tensors()["model"]
    assert {n: p.shape for n, p in before.items()} == {n: view.shape for n, view in held.items()}
    trainer.step(ragged_rows(8), 1e-2)
    for n, parameter in trainer.model.named_parameters():
        assert not torch.equal(parameter, before[n]), n


def test_collecting_adds_up_micro_batches() -> None:
    for compute in (torch.float32, torch.bfloat16):
        model = Parts()
        master = Master(model, compute=compute, device=CPU)
        parts = [random_gradients(model, seed) for seed in range(3)]
        for number, gradients in enumerate(parts):
            for n, parameter in model.named_parameters():
                parameter.grad = gradients[n].to(parameter.dtype)
            master.collect(first=number == 0)
            assert all(p.grad is None for p in model.parameters())
        sizes = [p.numel() for p in master.tensors()["model"].values()]
        for n, flat in zip(master.names, master.gradient[: sum(sizes)].split(sizes), strict=True):
            low = compute == torch.bfloat16 and n.startswith("dense")
            addends = [p[n].to(torch.bfloat16).float() if low else p[n] for p in parts]
            torch.testing.assert_close(flat, sum(addends).flatten(), rtol=1e-6, atol=1e-6)
        give(master, model, parts[0])
        assert master.gradient.norm() < 10, "the next step starts anew"


def test_parameters_are_views_of_the_flat_weights() -> None:
    model = Parts()
    values = {n: p.detach().clone() for n, p in model.named_parameters()}
    master = Master(model, compute=torch.float32, device=CPU)
    stored = master.tensors()["model"]
    assert stored.keys() == values.keys() == set(master.names)
    for n, parameter in model.named_parameters():
        assert torch.equal(parameter, values[n]) and torch.equal(stored[n], values[n])
        assert parameter.data_ptr() == stored[n].data_ptr()
    assert set(master.tensors()) == {"model", "average", "square"}


@NO_NATIVE_BF16
def test_the_compute_copy_is_the_rounded_master() -> None:
    trainer = Trainer(tiny_config(), micro=8, compute=torch.bfloat16)
    model, master = trainer.model, trainer.master
    linear = {
        f"{n}.{part}" for n, m in model.named_modules() if isinstance(m, nn.Linear) for part in ("weight", "bias")
    }
    for step in range(3):
        stored = master.tensors()["model"]
        for n, parameter in model.named_parameters():
            assert stored[n].dtype == torch.float32
            if n in linear:
                assert parameter.dtype == torch.bfloat16, n
                assert torch.equal(parameter, stored[n].to(torch.bfloat16)), n
            else:
                assert parameter.dtype == torch.float32 and parameter.data_ptr() == stored[n].data_ptr(), n
        trainer.step(ragged_rows(4, seed=step), 1e-3)
    # Updates smaller than bf16 can hold add up in the master weights.
    assert any(
        not torch.equal(master.tensors()["model"][n].bfloat16().float(), master.tensors()["model"][n]) for n in linear
    )
    assert math.isfinite(trainer.step.read()["mlm_sum"])


@NO_NATIVE_BF16
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_loading_brings_everything_back(compute: torch.dtype) -> None:
    config = tiny_config()
    one, other = Trainer(config, micro=8, compute=compute), Trainer(replace(config, seed=5), micro=8, compute=compute)
    one.step(ragged_rows(4), 1e-3)
    saved = {group: {n: t.clone() for n, t in part.items()} for group, part in one.master.tensors().items()}
    other.master.load(saved)
    for trainer in (one, other):
        trainer.step(ragged_rows(4, seed=9), 1e-3)
    for group, part in one.master.tensors().items():
        for n, tensor in part.items():
            assert torch.equal(tensor, other.master.tensors()[group][n]), (group, n)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True))


def test_buffers_are_filled_up_with_zeros_that_stay() -> None:
    """Kernels read and write 16 numbers at once, whatever the sizes of the weights."""
    trainer = Trainer(tiny_config(), micro=8)
    master = trainer.master
    held = sum(view.numel() for view in master.tensors()["model"].values())
    assert held % 16 and len(master.weights) == held + -held % 16, "this model's weights do need some"
    assert (master.copied.stop - master.copied.start) % 16 == 0 or master.copied.start % 16
    for _ in range(3):
        trainer.step(ragged_rows(8), 1e-2)
    for buffer in (master.weights, master.gradient, master.average, master.square):
        assert not buffer[held:].any() and buffer[:held].any()
