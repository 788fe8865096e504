"""The generator on a stream of its own: its way back then runs beside the discriminator's, which it does not depend on.

The autograd engine takes a node back on the stream that it went there on, and joins the streams at the end. Memory is
safe because each stream waits for the other at both ends of the generator's way there, and the engine waits in between.
"""

from __future__ import annotations

from functools import cache

import torch

ENABLED = True


def step_aside(device: torch.device) -> torch.cuda.Stream | None:
    """From here on, work goes to the second stream; what to hand to `step_back`. On a CPU nothing happens."""
    return _enter(device) if device.type == "cuda" and ENABLED else None


def step_back(main: torch.cuda.Stream | None) -> None:
    """From here on, work goes to the first stream again, after what was done beside it."""
    if main is not None:
        _leave(main)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _enter(device: torch.device) -> torch.cuda.Stream:
    main, side = torch.cuda.current_stream(device), _side(device)
    side.wait_stream(main)
    torch.cuda.set_stream(side)
    return main


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _leave(main: torch.cuda.Stream) -> None:
    main.wait_stream(torch.cuda.current_stream())
    torch.cuda.set_stream(main)


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
