"""The GELU: torch's own there, and its derivative in float64 on the way back, however it is computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from electra.model import activation


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_and_its_derivative(dtype: torch.dtype, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "SLOW_BACK", slow)
    x = torch.cat((torch.linspace(-12, 12, 4001), torch.tensor([0.0, 60.0, -60.0]))).to(dtype).requires_grad_()
    gradient = torch.linspace(-2, 3, len(x)).to(dtype)
    y = activation.gelu(x)
    assert ("_Gelu" in type(y.grad_fn).__name__) == (slow and dtype == torch.float32)
    y.backward(gradient)
    exact = x.detach().double().requires_grad_()
    F.gelu(exact).backward(gradient.double())
    assert x.grad is not None and exact.grad is not None
    bound = 1e-6 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=bound, atol=bound)
    with torch.no_grad():
        assert torch.equal(activation.gelu(x), F.gelu(x))
