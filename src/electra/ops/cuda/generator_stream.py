"""The generator on a CUDA stream of its own, so that its backward runs beside the discriminator's.

The autograd engine runs a node's backward on the stream of its forward, as soon as its gradient is there, and joins the
streams at the end: so the generator's loss must be summed inside this context, or its backward would begin after the
discriminator's. Memory is safe because each stream waits for the other at both ends of the generator's forward, and
what both backwards read is released only after all of the discriminator's has been queued.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


@contextmanager
def generator_stream(device: torch.device) -> Iterator[None]:
    main, side = torch.cuda.current_stream(device), _side_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield
    main.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # Tables that both networks read get gradients from both streams, which the engine joins, with a warning by default.
    quiet = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if quiet is not None:
        quiet(False)
    return torch.cuda.Stream(device)
