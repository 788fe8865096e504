"""Backwards that are written out have no derivative of their own, and say so where one is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Backward = TypeVar("Backward", bound=Callable[..., Any])
PLAIN = "plain ops have one: train.kernels=plain, or kernels=plain in fine-tuning"


def first_order_only(backward: Backward, *, fix: str = PLAIN) -> Backward:
    """An autograd Function's `backward` that raises under `create_graph=True`.

    `torch.autograd.function.once_differentiable` does so only where the incoming gradient itself requires one. That of
    a loss does not: a gradient penalty would train on a wrong gradient, and nothing would say so.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        # Autograd runs a backward with gradients enabled under create_graph=True alone; a compiler traces it so too.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            name = type(ctx).__name__.removeprefix("_").removesuffix("Backward")
            raise RuntimeError(f"{name} has no second derivative, which create_graph=True asks for ({fix})")
        return backward(ctx, *gradients)

    return checked  # type: ignore[return-value]
