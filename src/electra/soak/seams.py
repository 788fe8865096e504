"""Acts at the seams of a save, in a campaign's child: `fsio.seam` is called between two of its writes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from electra import fsio
from electra.finetune import trainer


def save_often() -> None:
    """Fine-tuning saves every minute: in a campaign at every step."""
    trainer.SAVE_EVERY_S, trainer.SAVE_SHARE = 0.0, 1e9


def die_at(nth: int) -> Callable[[], None]:
    """What lets a process kill itself at the n-th seam that it comes to."""
    left = nth

    def die() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return lambda: _at_seams(die)


def count_into(path: Path) -> Callable[[], None]:
    """What lets a process add a byte to a file at every seam that it comes to."""

    def count() -> None:
        with open(path, "ab") as file:
            file.write(b".")

    return lambda: _at_seams(count)


def _at_seams(act: Callable[[], None]) -> None:
    """Call `act` at every seam of a save, in this process; the clock's own small file is none."""

    def seam(name: str) -> None:
        if threading.current_thread() is threading.main_thread():
            act()

    save_often()
    plain = fsio.seam
    for module in list(sys.modules.values()):
        if getattr(module, "seam", None) is plain:
            module.seam = seam  # type: ignore[attr-defined]
