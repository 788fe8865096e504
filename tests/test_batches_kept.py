"""What is said about rows before training on them."""

from __future__ import annotations

import pytest
from tiny import SPECIALS

from electra.batches.epoch_plan import plan_epoch
from electra.batches.kept import describe, warnings
from electra.bench.made_corpora import Lengths
from electra.config.schema import DataConfig, LayoutName


def said(sizes: list[list[int]], layout: LayoutName, length: int = 32) -> tuple[str, list[str]]:
    split, data = Lengths(sizes), DataConfig(layout=layout, length=length, short=0.0, single_segment=0.0)
    planned = plan_epoch(split, data, SPECIALS, seed=0, epoch=0)
    return describe(planned, data), warnings(planned, split, data)


def test_what_is_discarded_and_why() -> None:
    # Rows of 30, 30, and 20 with 9 tokens, of 200; 160 are in sentences of more than 30.
    line, found = said([[100], [60, 20, 20]], "paper-official")
    assert line == "keeps 44.5% of the tokens; 0.0% of the positions are padding"
    assert found == [
        "data.layout=paper-official discards 55.5% of the tokens: what exceeds a row's data.length=32 is cut off, and "
        "80% of the tokens are in sentences that are longer than a row (data.layout=sentences discards nothing)"
    ]


@pytest.mark.parametrize("layout", ["sentences", "packed"])
def test_the_other_layouts_discard_nothing(layout: LayoutName) -> None:
    line, found = said([[100], [60, 20, 20]], layout)
    assert line.startswith("keeps 100.0% of the tokens; ") and found == []


def test_rows_that_are_mostly_empty() -> None:
    # Rows of 7 of 32, and one of 24: [CLS] and [SEP] are no padding.
    assert said([[5]] * 9 + [[22]], "sentences")[1] == [
        "73% of the positions are padding, and padding costs as much as text: 90% of the documents fill less than half "
        "of data.length=32 (data.layout=packed leaves no padding)"
    ]
    line, found = said([[5]] * 9 + [[22]], "packed")
    assert line == "keeps 100.0% of the tokens; 0.0% of the positions are padding" and found == []


def test_no_text_at_all() -> None:
    for layout in ("sentences", "paper-official", "packed"):
        assert said([[]], layout)[0] == "keeps 0.0% of the tokens; 0.0% of the positions are padding"


def test_copies_are_named() -> None:
    planned = plan_epoch(Lengths([[30]] * 9), DataConfig(length=32, short=0.0), SPECIALS, seed=0, epoch=0)
    line = describe(planned, DataConfig(length=32, copies=0.7, copies_share=0.2))
    assert line.endswith("; in the last 20% of the run 70% of the rows become shorter ones of segments to compare")
    line = describe(planned, DataConfig(length=32, copies=0.015, copies_share=0.001))
    assert line.endswith("; in the last 0.1% of the run 1.5% of the rows become shorter ones of segments to compare")
    line = describe(planned, DataConfig(length=32, copies=0.7))
    assert line.endswith("; 70% of the rows become shorter ones of segments to compare")
