"""`electra demo` from text to report, small; a second run finds everything done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from electra.cli import main
from electra.demo import demo
from electra.errors import ConfigError

PACKAGES = ("numpy", "networkx")


@pytest.mark.slow
def test_end_to_end_and_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    first = demo(out, minutes=0.1, epochs=1, packages=PACKAGES)
    said = capfd.readouterr().err
    assert [line[:3] for line in said.splitlines() if re.match(r"\d/5", line)] == [f"{i}/5" for i in range(1, 6)]
    assert first.report == out / "report.html" and first.chance == 0.5
    results = json.loads((out / "run" / "results.json").read_text())
    assert results["pretrained"]["accuracy"] == first.pretrained
    assert len(results["pretrained"]["predictions"]) == len(results["task"]["gold"]) == results["task"]["dev"]
    assert results["ledger"]["steps"] > 0 and results["ledger"]["real_flops"] > 0
    page = first.report.read_text()
    assert f"{first.pretrained:.1%}" in page and "numpy" in page and str(tmp_path) not in page

    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path != first.report}
    again = demo(out, minutes=0.1, epochs=1, packages=PACKAGES)
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file() and path != first.report}
    assert after == before
    assert (again.auc, again.pretrained, again.untrained) == (first.auc, first.pretrained, first.untrained)
    assert first.report.read_text() == page
    with pytest.raises(ConfigError, match="train.max_minutes 0.1 -> 0.2"):
        demo(out, minutes=0.2, epochs=1, packages=PACKAGES)


def test_no_time_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "demo"), "--minutes", "0"])
    assert result.exit_code == 2
    assert not (tmp_path / "demo").exists()
