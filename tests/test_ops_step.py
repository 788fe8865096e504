"""A whole step and an evaluation over one backend's ops: the reference's statistics, gradient and weights, in fp32."""

from __future__ import annotations

import pytest
import torch
from ops_backends import GPU, prepare, reference_ops, triton_ops
from tiny import Trainer, ragged_rows, tiny_config
from torch import Tensor

from electra.batches.sequences import unpack
from electra.config.schema import GeneratorConfig, ObjectiveConfig
from electra.ops import Ops
from electra.ops.dispatch import host_ops


def trainer(name: str, micro: int, kind: str, ops: Ops) -> Trainer:
    objective, generator = ObjectiveConfig(name=name), GeneratorConfig(kind=kind, width=0.5)  # type: ignore[arg-type]
    return Trainer(tiny_config(objective=objective, generator=generator), micro=micro, ops=ops)


@pytest.mark.skipif(GPU, reason="in Triton's interpreter, which a GPU switches off")
@pytest.mark.parametrize(
    ("backend", "name", "micro", "kind"),
    [
        ("triton", "rtd", 3, "transformer"),
        ("triton", "rtd-15", 4, "uniform"),
        pytest.param("triton", "all-tokens-mlm", 4, "transformer", marks=pytest.mark.soak),
        ("triton", "electric", 4, "two-tower"),
        ("triton", "mlm", 4, "transformer"),
        ("cpp", "rtd", 4, "transformer"),
        ("cpp", "mlm", 3, "transformer"),
    ],
)
def test_a_step_over_a_backend_is_the_reference_step(
    backend: str, name: str, micro: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(backend, monkeypatch)
    ops = triton_ops() if backend == "triton" else host_ops()
    fused, plain = trainer(name, micro, kind, ops), trainer(name, micro, kind, reference_ops())
    rows = ragged_rows(4)
    evaluated = [one.objective.evaluate(one.model, unpack(rows)) for one in (fused, plain)]
    for got, want in zip(*evaluated, strict=True):
        if isinstance(got, Tensor):
            torch.testing.assert_close(got.float(), want.float(), rtol=1e-4, atol=1e-5)
    for one in (fused, plain):
        one.step(rows, 1e-3)
    found, wanted = fused.step.read(), plain.step.read()

    # torch's own AdamW leaves the gradient clipped.
    got, want = (one.master.gradient / one.master.gradient.norm() for one in (fused, plain))
    assert (got - want).norm() < 1e-5 and wanted["grad_norm"] > 1.5
    torch.testing.assert_close(fused.master.weights, plain.master.weights, rtol=0, atol=1e-5)
    assert found == pytest.approx(wanted, rel=2e-5)
