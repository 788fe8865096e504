"""The short form of `python -m electra.soak flips`."""

from __future__ import annotations

from electra.soak.flips import run_flips


def test_promise_09_flipped_bits_are_refused_or_change_nothing() -> None:
    report = run_flips(40, seed=1)
    assert not report.failures, "\n".join(report.lines())
    assert set(report.counts) == {"data", "run and checkpoints", "export", "fine-tuned", "unfinished seed"}
    assert report.total["refused"] >= 15 and report.total["refused"] + report.total["identical"] == 40
