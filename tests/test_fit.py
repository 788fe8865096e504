"""How a step is fitted to the machine; and that running layers twice changes nothing but what is kept."""

from __future__ import annotations

import pytest
import torch
from tiny import Trainer, ragged_rows, tiny_config

from electra import kernels, rng
from electra.config.load import load
from electra.config.schema import ObjectiveConfig, OptimConfig
from electra.kernels.host import library
from electra.model.electra import keep_inputs_only
from electra.objective import beside
from electra.train.fit import (
    TOKENS_AT_ONCE,
    fit_model,
    kept_a_token,
    pays_to_compile,
    pays_to_recompute,
    rows_at_once,
)


@pytest.mark.parametrize(
    ("changes", "usable", "compiles"),
    [
        ([], True, True),  # a million steps
        (["train.steps=20000"], True, False),
        (["train.steps=20000"], False, True),  # no kernels: uncompiled layers would be slow
        (["train.steps=20000", "train.kernels=plain"], True, True),
        (["train.steps=5000", "optim.warmup_steps=500", "train.kernels=plain"], True, False),
        (["train.max_minutes=10", "train.kernels=plain"], True, False),
        (["train.steps=20000", "train.precision=fp32"], True, True),
        (["train.steps=20000", "data.length=512"], True, False),
        (["train.steps=20000", "model.heads=2"], True, True),  # heads too large for the kernels
        (["train.steps=20000", "generator.width=0.3"], True, True),  # the generator's one head of 77
        (["train.steps=20000", "generator.kind=two-tower"], True, True),  # causal layers, always plain
        (["train.steps=20000", "train.compile=on"], True, True),
        (["train.compile=off"], True, False),
        (["train.max_minutes=10"], True, False),
        (["train.max_minutes=60", "train.steps=20000"], True, True),
    ],
)
def test_short_runs_are_not_compiled(
    changes: list[str], usable: bool, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "USABLE", usable)
    precise = any("precision" in change for change in changes)
    config = load("small", overrides=changes if precise else ["train.precision=bf16", *changes])
    assert pays_to_compile(config, torch.device("cuda")) == compiles
    on_cpu = config.train.compile == "on"
    assert pays_to_compile(config, torch.device("cpu")) == on_cpu


@pytest.mark.parametrize(
    ("changes", "aside"),
    [
        ([], True),
        (["train.compile=on"], True),  # measured: kernels keep the compiler's graphs apart
        (["train.kernels=plain"], False),
        (["train.precision=fp32"], False),
        (["generator.kind=two-tower"], False),
        (["model.heads=2"], False),
    ],
)
def test_only_fused_encoders_have_a_stream_each(
    changes: list[str], aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled whole must not be handed streams: torch 2.11 crashes."""
    asked: list[torch.device] = []
    monkeypatch.setattr(kernels, "USABLE", True)
    monkeypatch.setattr(rng, "mix_on_gpu", None)
    monkeypatch.setattr(beside, "_wanted", not aside)  # and as it was, afterwards
    monkeypatch.setattr(beside, "_enter", asked.append)
    precise = any("precision" in change for change in changes)
    overrides = ["train.recompute=off", *([] if precise else ["train.precision=bf16"]), *changes]
    try:
        fit_model(torch.nn.Identity(), load("small", overrides=overrides), torch.device("cuda"), rows=128)
    finally:
        library.use()
    beside.step_aside(torch.device("cuda"))
    assert len(asked) == aside and beside.step_aside(torch.device("cpu")) is None


@pytest.mark.parametrize(
    ("length", "rows", "micro", "expected"),
    [
        (128, 128, 0, 128),
        (128, 512, 0, 512),
        (128, 1024, 0, 512),
        (128, 1021, 0, 511),
        (512, 256, 0, 128),
        (128, 64, 16, 16),
    ],
)
def test_large_batches_are_taken_in_equal_parts(length: int, rows: int, micro: int, expected: int) -> None:
    config = load(
        "small", overrides=[f"data.length={length}", f"train.batch_size={rows}", f"train.micro_batch={micro}"]
    )
    assert rows_at_once(config, rows) == expected
    assert micro or rows_at_once(config, rows) * length <= TOKENS_AT_ONCE


@pytest.mark.parametrize("choice", ["on", "off", "auto"])
def test_layers_run_twice_where_asked(choice: str) -> None:
    config = load("small", overrides=[f"train.recompute={choice}"])
    assert pays_to_recompute(config, torch.device("cpu"), 128) == (choice == "on")


def test_what_is_kept_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """ELECTRA-Small: 12 layers of 256 (1,024 inside) and 12 of 64 (256), two bytes a number."""
    monkeypatch.setattr(kernels, "USABLE", True)
    small, cpu = ["train.precision=bf16"], torch.device("cpu")
    generator = 2 * 12 * (8 * 64 + 2 * 256)
    assert kept_a_token(load("small", overrides=small), cpu) == 2 * 12 * (8 * 256 + 2 * 1024) + generator
    bert = load("small", overrides=[*small, "objective.name=mlm"])
    assert kept_a_token(bert, cpu) == 2 * 12 * (8 * 256 + 2 * 1024)
    # Plain and in single precision: twice the bytes, and three scores for each of 128 keys and 4 heads.
    single = load("small", overrides=["train.precision=fp32", "objective.name=mlm"])
    assert kept_a_token(single, cpu) == 4 * 12 * (8 * 256 + 2 * 1024 + 3 * 4 * 128)


@pytest.mark.parametrize("name", ["rtd", "mlm"])
def test_running_layers_twice_changes_no_gradient(name: str) -> None:
    objective = ObjectiveConfig(name=name)  # type: ignore[arg-type]
    found = []
    for recompute in (False, True):
        trainer = Trainer(tiny_config(optim=OptimConfig(clip=1e9), objective=objective), micro=8)
        if recompute:
            keep_inputs_only(trainer.model)
        trainer.step(ragged_rows(8), 0.0)
        found.append(trainer.master.gradient.clone())
    assert torch.equal(*found) and bool(found[0].any())
