"""How a step executes on a machine; and that recomputing layers changes nothing but the saved activations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny import Trainer, ragged_rows, tiny_config

from electra.config.load import load
from electra.config.schema import ObjectiveConfig, OptimConfig
from electra.model.encoder import Encoder
from electra.ops import dispatch
from electra.ops.cpp import library
from electra.ops.dispatch import EncoderSizes, is_fused, saved_activations
from electra.train.execution import (
    TOKENS_AT_ONCE,
    Execution,
    pays_to_recompute,
    plan_execution,
    rows_at_once,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def planned(*changes: str, device: torch.device = GPU, rows: int = 128, processes: int = 1) -> Execution:
    """The execution of `small` in bf16, or as the changes say."""
    given = {change.partition("=")[0] for change in changes}
    defaults = [text for text in ("train.precision=bf16", "train.recompute=off") if text.partition("=")[0] not in given]
    return plan_execution(load("small", overrides=[*defaults, *changes]), device, rows=rows, processes=processes)


@pytest.mark.parametrize(
    ("changes", "compiles"),
    [
        ([], False),  # a million steps: beside fused ops compiling gains nothing
        (["train.steps=20000"], False),
        (["train.steps=20000", "train.kernels=plain"], True),  # uncompiled reference ops would be slow
        (["train.steps=5000", "optim.warmup_steps=500", "train.kernels=plain"], False),
        (["train.max_minutes=10", "train.kernels=plain"], False),
        (["train.max_minutes=60", "train.steps=20000", "train.kernels=plain"], True),
        (["train.steps=20000", "train.precision=fp32"], True),
        (["train.steps=20000", "data.length=512"], False),
        (["train.steps=20000", "model.heads=2"], True),  # heads too large for the fused attention
        (["train.steps=20000", "generator.width=0.3"], True),  # the generator's one head of 77
        (["train.steps=20000", "generator.kind=two-tower"], True),  # causal attention is the reference's
        (["train.steps=20000", "train.compile=on"], True),
        (["train.compile=off"], False),
        (["train.compile=off", "train.kernels=plain"], False),
        (["train.max_minutes=10"], False),
        (["train.max_minutes=60", "train.steps=20000"], False),
    ],
)
def test_only_long_runs_of_reference_ops_are_compiled(changes: list[str], compiles: bool, ampere: torch.device) -> None:
    execution = planned(*changes)
    assert execution.compiled == compiles
    backends = {chosen.backend for _, chosen in execution.ops}
    if compiles or "train.kernels=plain" in changes:
        assert backends == {"reference"}, "the compiler fuses by itself, and crashes on a second stream"
    else:
        assert execution.ops.chosen["encoder_stack"].backend == "triton" and "cpp" not in backends
    assert planned(*changes, device=CPU).compiled == ("train.compile=on" in changes)


def test_a_gpu_without_triton_compiles_from_ten_thousand_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    dispatch.triton_missing.cache_clear()
    assert planned("train.steps=20000").compiled
    assert not planned("train.steps=5000", "optim.warmup_steps=500").compiled


@pytest.mark.parametrize(
    ("changes", "captured"),
    [([], True), (["train.compile=off"], True), (["train.compile=on"], True), (["train.capture=false"], False)],
)
def test_capturing_is_a_choice_of_its_own(changes: list[str], captured: bool, ampere: torch.device) -> None:
    assert planned(*changes).captured == captured
    assert not planned(*changes, device=CPU).captured


def test_several_processes_run_plain_steps(ampere: torch.device) -> None:
    one, two = (planned("train.shard=true", processes=count) for count in (1, 2))
    assert one.captured and not one.sharded
    assert two.sharded and not two.captured and not two.compiled
    assert two.ops.chosen["generator_stream"].backend == "reference", "FSDP2 gathers on the stream in use"
    replicated = planned(processes=2)
    assert not replicated.sharded and not replicated.captured


@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ([], "cuda"),
        (["train.compile=on"], "reference"),
        (["train.kernels=plain"], "reference"),
        (["train.precision=fp32"], "reference"),
    ],
)
def test_what_is_compiled_whole_has_one_stream(changes: list[str], backend: str, ampere: torch.device) -> None:
    """What is compiled whole must not be handed streams: torch 2.11 crashes."""
    assert planned(*changes).ops.chosen["generator_stream"].backend == backend
    assert planned(*changes, device=CPU).ops.chosen["generator_stream"].backend == "reference"


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
    overrides = [f"data.length={length}", f"train.batch_size={rows}", f"train.micro_batch={micro}"]
    config = load("small", overrides=overrides)
    assert rows_at_once(config.train, config.data, rows) == expected
    assert micro or rows_at_once(config.train, config.data, rows) * length <= TOKENS_AT_ONCE
    assert planned(*overrides, device=CPU, rows=rows).micro_batch == expected


@pytest.mark.parametrize("choice", ["on", "off", "auto"])
def test_layers_are_recomputed_where_asked(choice: str) -> None:
    assert planned(f"train.recompute={choice}", device=CPU).recompute == (choice == "on")
    train = load("small", overrides=[f"train.recompute={choice}"]).train
    assert pays_to_recompute(train, CPU, saved_bytes=10**15) == (choice == "on")


def test_activations_saved_of_a_token(ampere: torch.device) -> None:
    """ELECTRA-Small: 12 layers of 256 (1,024 inside) and 12 of 64 (256); 4 heads attend to 128 tokens."""
    discriminator, generator = EncoderSizes(12, 256, 4, 1024, 128), EncoderSizes(12, 64, 1, 256, 128)
    bf16 = {"device": GPU, "dtype": torch.bfloat16}
    assert saved_activations(discriminator, "auto", **bf16) == 12 * (8 * 256 + 2 * 1024)
    assert saved_activations(generator, "auto", **bf16) == 12 * (8 * 64 + 2 * 256)
    # The C++ saves a probability for each of 128 keys and 4 heads, the reference two more numbers.
    on_cpu = {"device": CPU, "dtype": torch.float32}
    fused = is_fused(discriminator, "auto", **on_cpu)
    assert fused == (not library.missing()) and not is_fused(discriminator, "plain", **on_cpu)
    scores = (1 if fused else 3) * 4 * 128
    assert saved_activations(discriminator, "auto", **on_cpu) == 12 * (8 * 256 + 2 * 1024 + scores)
    assert saved_activations(discriminator, "plain", **bf16) == 12 * (8 * 256 + 2 * 1024 + 3 * 4 * 128)


@pytest.mark.parametrize(
    ("changes", "token_bytes"),
    [
        ([], 2 * 12 * (8 * 256 + 2 * 1024) + 2 * 12 * (8 * 64 + 2 * 256)),
        (["objective.name=mlm"], 2 * 12 * (8 * 256 + 2 * 1024)),
        # In single precision: twice the bytes, and the scores of reference attention.
        (["objective.name=mlm", "train.precision=fp32"], 4 * 12 * (8 * 256 + 2 * 1024 + 3 * 4 * 128)),
    ],
)
def test_layers_are_recomputed_where_half_of_a_gpu_is_too_small(
    changes: list[str], token_bytes: int, ampere: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = 128 * 128 * token_bytes
    for memory, recomputes in ((2 * saved, False), (2 * saved - 2, True)):
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device, memory=memory: SimpleNamespace(total_memory=memory)
        )
        assert planned("train.recompute=auto", *changes).recompute == recomputes


@pytest.mark.parametrize("name", ["rtd", "mlm"])
def test_recomputing_layers_changes_no_gradient(name: str) -> None:
    objective = ObjectiveConfig(name=name)  # type: ignore[arg-type]
    found = []
    for recompute in (False, True):
        trainer = Trainer(tiny_config(optim=OptimConfig(clip=1e9), objective=objective), micro=8)
        for module in trainer.model.modules():
            if isinstance(module, Encoder):
                module.recompute = recompute
        trainer.step(ragged_rows(8), 0.0)
        found.append(trainer.master.gradient.clone())
    assert torch.equal(*found) and bool(found[0].any())
