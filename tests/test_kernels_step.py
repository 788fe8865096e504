"""An evaluation and a whole step by Triton's kernels: the plain ones' figures, gradient and weights, in fp32."""

from __future__ import annotations

import pytest
import torch
from kernel_truth import HERE, judge_here
from tiny import Trainer, ragged_rows, tiny_config
from torch import Tensor

from electra import rng
from electra.batches.sequences import unpack
from electra.config.schema import GeneratorConfig, ObjectiveConfig
from electra.kernels import native, vocabulary
from electra.kernels.hashing import mix_words
from electra.model.electra import use_plain_operations
from electra.model.encoder import Encoder
from electra.model.heads import DetectionHead, MaskedHead
from electra.model.layers import Embeddings
from electra.objective import rtd
from electra.train import optim
from electra.train.step import Stepper


def made(name: str, micro: int, kind: str = "transformer") -> Trainer:
    objective, generator = ObjectiveConfig(name=name), GeneratorConfig(kind=kind, width=0.5)  # type: ignore[arg-type]
    return Trainer(tiny_config(objective=objective, generator=generator), micro=micro)


def say_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have numbers on the CPU say that they are on a GPU, and the interpreter run what that takes."""
    for place in (Encoder, Embeddings, DetectionHead, MaskedHead):
        monkeypatch.setattr(place, "fused", True)
    # Kernels are for bf16, whose products the interpreter gets wrong.
    monkeypatch.setattr(Encoder, "_may_fuse", lambda self, x: True)
    monkeypatch.setattr(DetectionHead, "forward", DetectionHead._run_fused)
    monkeypatch.setattr(MaskedHead, "states", MaskedHead._run_fused)
    monkeypatch.setattr(native, "can_run", lambda like, kernel: False)
    monkeypatch.setattr(rng, "mix_on_gpu", mix_words)
    monkeypatch.setattr(rtd, "step_aside", lambda device: None)
    monkeypatch.setattr(Stepper, "_step", Stepper._work)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda self: True))


pytestmark = pytest.mark.skipif(HERE.device != "cpu", reason="plain numbers on a CPU that say they are on a GPU")


@pytest.mark.parametrize(
    ("name", "micro", "kind", "logits"),
    [
        ("rtd", 8, "transformer", True),
        ("rtd", 8, "transformer", False),
        ("rtd", 3, "transformer", True),
        ("rtd-15", 8, "uniform", True),
        ("all-tokens-mlm", 8, "transformer", True),
        ("electric", 8, "two-tower", True),
        ("mlm", 8, "transformer", True),
    ],
)
def test_a_step_by_kernels_is_the_plain_one(
    name: str, micro: int, kind: str, logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, fused, rows = made(name, micro, kind), made(name, micro, kind), ragged_rows(8)
    use_plain_operations(plain.model)
    judged = plain.objective.evaluate(plain.model, unpack(rows))
    plain.step(rows, 1e-3)
    wanted = plain.step.read()

    monkeypatch.setattr(fused.step._update, "_groups", optim._groups(fused.master, 0.01))
    say_gpu(monkeypatch)
    if not logits:
        judge_here(monkeypatch)
    found_judged = fused.objective.evaluate(fused.model, unpack(rows))
    for one, other in zip(found_judged, judged, strict=True):
        if isinstance(one, Tensor):
            torch.testing.assert_close(one.float(), other.float(), rtol=1e-4, atol=1e-5)
    if not logits:  # the evaluation looks at them
        monkeypatch.setattr(vocabulary, "_Predict", None)
    fused.step(rows, 1e-3)
    found = fused.step.read()

    # torch's own AdamW leaves the gradient clipped.
    one, other = (trainer.master.gradient / trainer.master.gradient.norm() for trainer in (fused, plain))
    assert (one - other).norm() < 1e-5 and wanted["grad_norm"] > 1.5
    torch.testing.assert_close(fused.master.weights, plain.master.weights, rtol=0, atol=1e-5)
    assert found == pytest.approx(wanted, rel=2e-5)
