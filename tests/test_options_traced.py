"""Every option traces as one graph without a copy from the host, as a captured step needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import SPECIALS, VOCAB, Trainer, make_model, make_objective, ragged_rows, tiny_config
from torch import Tensor

from electra.batches.layout import separator_of
from electra.batches.masking import MaskedPositions
from electra.batches.sequences import unpack
from electra.config.schema import Config, DataConfig, GeneratorConfig, MaskingConfig, ObjectiveConfig
from electra.objective.base import Outcome
from electra.objective.registry import Resources, build_objective
from electra.ops.dispatch import select
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "unigram": {"generator": GeneratorConfig(kind="unigram")},
    "uniform": {"generator": GeneratorConfig(kind="uniform", temperature=2.0, disallow_correct=True)},
    "two-tower": {"generator": GeneratorConfig(kind="two-tower", width=0.5)},
    "temperature": {"generator": GeneratorConfig(width=0.5, temperature=2.0, disallow_correct=True)},
    "none": {"generator": GeneratorConfig(width=0.5, tying="none")},
    "all": {"generator": GeneratorConfig(width=1.0, tying="all")},
    "gdes": {"generator": GeneratorConfig(width=0.5, tying="gdes")},
    "rare": {"masking": MaskingConfig(rare=0.5)},
    "curriculum": {
        "masking": MaskingConfig(rate_start=0.3),
        "generator": GeneratorConfig(width=0.5, temperature_start=2.0, unigram_share=0.5),
    },
    "contrastive": {"objective": ObjectiveConfig(contrastive_weight=1.0)},
    "packed": {"data": DataConfig(layout="packed", length=24)},
}


def counts() -> Tensor:
    return torch.arange(VOCAB) + 1


def traced(config: Config) -> list[torch.fx.GraphModule]:
    """The graphs of the masking and of the loss; the traced results must be those without tracing."""
    ops = select(device=torch.device("cpu"), dtype=torch.float32, compiled=True)
    progress = torch.full((), 0.3, dtype=torch.float64)
    model, objective = (
        make_model(config, ops=ops),
        make_objective(config, ops=ops, frequencies=counts, progress=progress),
    )
    graphs: list[torch.fx.GraphModule] = []
    separator = separator_of(config.data, SPECIALS)

    def keep(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def choose(rows: Tensor) -> tuple[MaskedPositions, Tensor]:
        batch = unpack(rows, separator)
        masked = objective.choose_masked(batch)
        return masked, objective.counts(batch, masked)

    def loss(rows: Tensor, masked: MaskedPositions, total: Tensor) -> Outcome:
        return objective.loss(model, unpack(rows, separator), masked, total)

    torch.compiler.reset()
    rows = ragged_rows(8)
    masked, total = choose(rows)
    same, again = torch.compile(choose, fullgraph=True, dynamic=False, backend=keep)(rows)
    assert torch.equal(masked.positions_BM, same.positions_BM) and torch.equal(total, again)
    expected = loss(rows, masked, total)
    found = torch.compile(loss, fullgraph=True, dynamic=False, backend=keep)(rows, masked, total)
    torch.testing.assert_close(found.sums, expected.sums)
    torch.testing.assert_close(found.loss, expected.loss)
    assert len(graphs) == 2, "one graph each"
    return graphs


@pytest.mark.parametrize(
    "name", ["unigram", "uniform", "two-tower", "gdes", "rare", "curriculum", "contrastive", "packed"]
)
def test_one_graph_and_no_copy_from_the_host(name: str) -> None:
    config = tiny_config(**VARIANTS[name], dropout=0.0)
    for graph in traced(replace(config, model=replace(config.model, layers=1))):
        for node in graph.graph.nodes:
            moves = node.op == "call_method" and node.target in ("cpu", "cuda", "item", "tolist")
            moves |= node.target == "to" and any(isinstance(arg, torch.device) for arg in node.args)
            assert not moves, node


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("name", "compiled"), [*((name, False) for name in VARIANTS), ("default", True), ("packed", True)]
)
def test_captured_steps_do_what_steps_on_a_cpu_do(name: str, compiled: bool) -> None:
    """The first step's losses and the masks of later ones; replays that repeated a mask would repeat a loss."""
    config = tiny_config(**VARIANTS[name], dropout=0.0)
    device = torch.device("cuda")
    ops = select(device=device, dtype=torch.float32, compiled=compiled)
    model = make_model(config, ops=ops)
    progress = torch.zeros((), dtype=torch.float64, device=device)
    objective = build_objective(config, Resources(SPECIALS, ops, counts, device, progress))
    master = Master(model, compute=torch.float32, device=device, ema=bool(config.optim.ema))
    separator = separator_of(config.data, SPECIALS)
    fast = Stepper(
        model,
        master,
        Update(master, config.optim, ops=ops, ema=config.optim.ema),
        objective,
        ops=ops,
        world=World(),
        micro_batch=8,
        compiled=compiled,
        captured=True,
        separator=separator,
        progress=progress,
    )
    plain = Trainer(config, micro=8, frequencies=counts, separator=separator)
    for seed in range(3):
        rows = ragged_rows(8, seed=seed)
        fast.place(seed, total=3)
        plain.step.place(seed, total=3)
        fast(rows.to(device), 0.0)
        plain.step(rows, 0.0)
        one, other = fast.read(), plain.step.read()
        assert one["masked"] == other["masked"] and one["mlm_sum"] == pytest.approx(other["mlm_sum"], rel=1e-3)
        assert one["rtd_sum"] == pytest.approx(other["rtd_sum"], rel=2e-2)
