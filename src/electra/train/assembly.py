"""What a run is made of before there is a model: its data, its device, its processes, how its steps execute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from electra import hardware
from electra.config.load import load
from electra.config.schema import Config
from electra.config.validate import validate
from electra.ops.compile_ahead import compile_sources
from electra.progress import say
from electra.shards.dataset import Prepared, open_data
from electra.train.execution import Execution, plan_execution
from electra.train.memory import require_memory
from electra.train.parallel import World, is_leader, join, local_rank, process_count


@contextmanager
def assembled(config: Config, *, data: Path) -> Iterator[tuple[Config, Prepared, Execution, World, bool]]:
    """The config as the data wants it, the data, how steps execute, the processes, and whether this is the first
    process of its machine; the processes part at the end of the block."""
    first = local_rank() == 0
    prepared = open_data(data, verify=first)
    config = _fit_vocabulary(config, prepared)
    device = hardware.device(config.train.device)
    require_memory(config, device, processes=process_count())
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if device.type == "cpu":
        hardware.keep_freed_memory()
    else:
        torch.cuda.set_device(local_rank())
    compile_sources(config.train.kernels, device=device, dtype=hardware.compute_dtype(config.train.precision, device))
    world = join(device, timeout_s=config.train.timeout_s)
    with closing(world):
        world.share(config.train.batch_start, key="train.batch_start")
        share = world.share(config.train.batch_size)
        execution = plan_execution(config, device, rows=share.stop - share.start, processes=world.size)
        yield config, prepared, execution, world, first


def _fit_vocabulary(config: Config, prepared: Prepared) -> Config:
    """The config with the data's vocabulary size, which the data decides; a line says so to who chose another."""
    chosen, actual = config.model.vocab_size, prepared.vocab_size
    if chosen != actual:
        if is_leader() and chosen != load(config.preset).model.vocab_size:
            say(f"model.vocab_size is {actual}, as in the data, not {chosen}")
        config = replace(config, model=replace(config.model, vocab_size=actual))
    validate(config)
    return config
