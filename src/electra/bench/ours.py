"""Our training step, as `electra pretrain` runs it, on random tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from electra.batches.layout import Specials, separator_of
from electra.config.schema import Config
from electra.model.electra import build_model
from electra.objective.registry import Resources
from electra.train.execution import Execution, make_stepper, plan_execution
from electra.train.optim import scales
from electra.train.parallel import World
from electra.train.stages import StageWeights, plan_stages
from electra.train.step import Stepper

PAD, CLS, SEP, MASK = 0, 2, 3, 4
SPECIALS = Specials(pad=PAD, cls=CLS, sep=SEP, mask=MASK)
FIRST_TOKEN = 5
DOCUMENT = 128
"""Tokens of a document in packed rows, on average; their lengths are random."""
RATE = 1e-4


def random_rows(config: Config, count: int) -> Tensor:
    """Rows of full length of random tokens: in two segments, or documents end to end where the layout is packed."""
    draw = np.random.default_rng(0)
    length, packed = config.data.length, config.data.layout == "packed"
    ids = draw.integers(FIRST_TOKEN, config.model.vocab_size, (count, length))
    keys = draw.integers(-(2**31), 2**31, (count, 1))
    if packed:
        ids[draw.random(ids.shape) < 1 / DOCUMENT] = SEP
    else:
        ids[:, length // 2 - 1] = SEP
    ids[:, 0], ids[:, -1] = CLS, SEP
    sizes = np.tile([length, length if packed else length // 2], (count, 1))
    return torch.from_numpy(np.concatenate((ids, sizes, keys), axis=1).astype(np.int32))


def our_step(config: Config, rows: Tensor) -> Callable[[], object]:
    """A function that trains on `rows` once, where they are."""
    device = rows.device
    execution = plan_execution(config, device, rows=len(rows))
    stepper = make_our_stepper(config, execution)
    return lambda: stepper(rows, RATE)


def make_our_stepper(config: Config, execution: Execution, specials: Specials = SPECIALS) -> Stepper:
    """A stepper of the run's last stage, from a fresh model."""
    model = build_model(config, ops=execution.ops, dtype=execution.dtype, recompute=execution.recompute)
    counts = torch.ones(config.model.vocab_size, dtype=torch.int64)
    stage = plan_stages(config, Resources(specials, execution.ops, lambda: counts, execution.device))[-1]
    stage.begin(model)
    scale = scales(config.optim, config.generator)
    master = StageWeights(model, stage, compute=execution.dtype, device=execution.device, scale=scale).master
    return make_stepper(
        model,
        master,
        stage.objective,
        config,
        execution,
        world=World(),
        separator=separator_of(config.data, specials),
    )
