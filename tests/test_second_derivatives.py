"""Backwards that are written out have no second derivative and say so; plain ops have one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import electra
from electra.model.layers import Layer
from electra.ops import Ops
from electra.ops.cpp import library
from electra.ops.dispatch import select

CPU = torch.device("cpu")
SOURCES = Path(electra.__file__).parent / "ops"
FIX = r"has no second derivative, which create_graph=True asks for \(plain ops have one: train.kernels=plain"
needs_compiler = pytest.mark.skipif(bool(library.missing()), reason=library.missing())


def drawn(*shape: int) -> Tensor:
    """Numbers that need a gradient, the same for the same shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def keys(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.int32)


def linear_gelu(ops: Ops, x: Tensor) -> Tensor:
    return ops.linear_gelu(x, drawn(8, 16), drawn(8))


def dropout(ops: Ops, x: Tensor) -> Tensor:
    return ops.dropout(x, 0.5, keys(len(x))) ** 2


def add_dropout_norm(ops: Ops, x: Tensor) -> Tensor:
    return ops.add_dropout_norm(
        x, drawn(*x.shape[:2], 4), drawn(16, 4), drawn(16), drawn(16), drawn(16), rate=0.1, keys_B=keys(len(x))
    )


def linear_cross_entropy(ops: Ops, x: Tensor) -> Tensor:
    gold_M = torch.arange(x.shape[0] * x.shape[1])
    return ops.linear_cross_entropy(x.flatten(0, 1), drawn(140, 16), drawn(140), gold_M, None, logits=False).nll_M


def encoder_stack(ops: Ops, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    layers = nn.ModuleList([Layer(16, 2, 32, dropout=0.1, attention_dropout=0.1, ops=ops) for _ in range(2)])
    masks: dict[str, Any] = {"lengths_B": None, "spans": None, "hidden_LL": None}
    return ops.encoder_stack(x, layers, **masks, keys_B=keys(len(x)), recompute=False)


CALLS = (linear_gelu, dropout, add_dropout_norm, linear_cross_entropy, encoder_stack)


@needs_compiler
@pytest.mark.parametrize("call", CALLS)
def test_a_gradient_penalty_is_refused_by_name_instead_of_being_wrong(call: Callable[[Ops, Tensor], Tensor]) -> None:
    # encoder_stack holds the attention that would keep the parts from C++.
    parts = ("encoder_stack",) if call in (linear_gelu, add_dropout_norm) else ()
    ops = select(device=CPU, dtype=torch.float32, deterministic=False, reference=parts)
    assert ops.chosen[call.__name__].backend == "cpp"
    x = drawn(3, 5, 16)
    loss = call(ops, x).sum()
    with pytest.raises(RuntimeError, match=FIX):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("call", CALLS)
def test_plain_ops_have_a_second_derivative(call: Callable[[Ops, Tensor], Tensor]) -> None:
    ops, x = select("plain", device=CPU, dtype=torch.float32), drawn(3, 5, 16)

    def penalty(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad((call(ops, x) ** 2).sum(), x, create_graph=True)
        return (gradient**2).sum()

    (found,) = torch.autograd.grad(penalty(x), x)
    step = 1e-2 * torch.nn.functional.normalize(found.flatten(), dim=0).view_as(x)
    higher, lower = (penalty((x + sign * step).detach().requires_grad_()) for sign in (1, -1))
    torch.testing.assert_close(float((higher - lower).detach()) / 2e-2, float(found.norm()), rtol=0.05, atol=1e-3)


def test_the_loss_of_the_copy_gate_is_refused_too() -> None:
    ops, x = select("plain", device=CPU, dtype=torch.float32), drawn(6, 16)
    gold, weight = torch.arange(6), torch.ones(6)
    loss = ops.copy_cross_entropy(x, drawn(140, 16), drawn(140), drawn(6), gold, gold > 3, weight)
    with pytest.raises(RuntimeError, match="CopyCrossEntropy has no second derivative"):
        torch.autograd.grad(loss, x, create_graph=True)


def backwards() -> Iterator[tuple[str, list[str]]]:
    """The backward of each autograd Function of the ops: where it is, and its decorators."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any("autograd.Function" in ast.unparse(base) for base in node.bases):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and method.name == "backward":
                        where = f"{path.relative_to(SOURCES)}: {node.name}"
                        yield where, [ast.unparse(decorator) for decorator in method.decorator_list]


def test_every_backward_of_an_op_says_so() -> None:
    found = dict(backwards())
    assert len(found) > 10
    assert not [where for where, how in found.items() if not any("first_order_only" in one for one in how)]
