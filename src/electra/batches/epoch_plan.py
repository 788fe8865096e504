"""The layouts there are, by the name that `data.layout` gives them."""

from __future__ import annotations

from collections.abc import Callable

from electra.batches.layout import Layout, Specials, Split
from electra.batches.packed import PackedLayout
from electra.batches.paper_official import PaperOfficialLayout
from electra.batches.sentence_rows import SentenceLayout
from electra.config.schema import DataConfig, LayoutName

LAYOUTS: dict[LayoutName, Callable[..., Layout]] = {
    "sentences": SentenceLayout,
    "paper-official": PaperOfficialLayout,
    "packed": PackedLayout,
}


def plan_epoch(split: Split, data: DataConfig, specials: Specials, *, seed: int, epoch: int) -> Layout:
    """The configured layout of `split` for one epoch."""
    return LAYOUTS[data.layout](split, data, specials, seed=seed, epoch=epoch)
