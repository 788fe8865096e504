"""The generator on a stream of its own: its way back then runs beside the discriminator's, which it does not depend on.

The autograd engine takes a node back on the stream that it went there on, as soon as its gradient is there, and joins
the streams at the end: so the generator's loss must be summed up on its stream, or its way back would begin behind the
discriminator's. Memory is safe because each stream waits for the other at both ends of the generator's way there, and
what both ways back read is let go only after all of the discriminator's has been asked for.
"""

from __future__ import annotations

from functools import cache

import torch

_wanted = True


def use_second_stream(wanted: bool = True) -> None:
    """Have the generator run beside the discriminator on a GPU, or before it.

    Not for encoders of plain operations: these are compiled whole, and the compiler crashes on a stream that crosses
    from one of its graphs to the next (torch 2.11).
    """
    global _wanted
    _wanted = wanted


def step_aside(device: torch.device) -> torch.cuda.Stream | None:
    """From here on, work goes to the second stream; what to hand to `step_back`. None where there is to be none."""
    return _enter(device) if _wanted and device.type == "cuda" else None


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
    # Tables that both networks read get gradients from both streams, which the engine joins, but not without a word.
    quiet = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
    if quiet is not None:
        quiet(False)
    return torch.cuda.Stream(device)
