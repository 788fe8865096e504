"""What rows keep of a text and how full they are, in words, with a warning where that is little."""

from __future__ import annotations

import numpy as np

from electra.batches.layout import Layout, Split, padding_share
from electra.config.schema import DataConfig

LITTLE = 0.9
"""A layout that keeps less of the tokens is warned of."""
WASTE = 0.5
"""Rows with more padding are warned of."""


def describe(layout: Layout, data: DataConfig) -> str:
    """`keeps 97.1% of the tokens; 3.0% of the positions are padding`."""
    padding = padding_share(layout, data.length)
    kept = f"keeps {layout.kept_share:.1%} of the tokens; {padding:.1%} of the positions are padding"
    if not data.copies:
        return kept
    when = "" if data.copies_share == 1 else f"in the last {_percent(data.copies_share)} of the run "
    return f"{kept}; {when}{_percent(data.copies)} of the rows become shorter ones of segments to compare"


def _percent(share: float) -> str:
    """With three digits that count, however small: it is what somebody asked for."""
    return f"{100 * share:.3g}%"


def warnings(layout: Layout, split: Split, data: DataConfig) -> list[str]:
    """What a person should know before training on these rows, with the reason and the fix."""
    found = []
    if layout.kept_share < LITTLE:
        sizes = np.diff(split.sentence_starts)
        long = sizes[sizes > data.length - 2].sum() / max(1, sizes.sum())
        found.append(
            f"data.layout={data.layout} discards {1 - layout.kept_share:.1%} of the tokens: what exceeds a row's "
            f"data.length={data.length} is cut off, and {long:.0%} of the tokens are in sentences that are longer than "
            "a row (data.layout=sentences discards nothing)"
        )
    padding = padding_share(layout, data.length)
    if padding > WASTE:
        sizes = np.diff(split.sentence_starts[split.document_starts])
        short = (sizes <= (data.length - 3) // 2).mean()
        found.append(
            f"{padding:.0%} of the positions are padding, and padding costs as much as text: {short:.0%} of the "
            f"documents fill less than half of data.length={data.length} (data.layout=packed leaves no padding)"
        )
    return found
