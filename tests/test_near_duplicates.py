"""The example that removes near-duplicates, run for real on a corpus with planted ones, up to our shards."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.options import PrepareOptions

ROOT = Path(__file__).parents[1]
WORDS = [f"{a}{b}" for a in ("ba", "ke", "li", "mo", "nu", "ra", "so") for b in ("dan", "fel", "gor", "hin", "jus")]
ORIGINALS, COPIES = 12, 5


def corpus(folder: Path) -> list[str]:
    """Documents of 120 words in two files, and near-copies of some, with one word changed; the originals."""
    chance = random.Random(0)
    originals = [[chance.choice(WORDS) for _ in range(120)] for _ in range(ORIGINALS)]
    copies = [[*words[:60], "otherwise", *words[61:]] for words in originals[:COPIES]]
    folder.mkdir()
    for name, some in (("a.txt", originals), ("b.txt", copies)):
        (folder / name).write_text("\n\n".join(" ".join(words) + "." for words in some) + "\n")
    return [" ".join(words) + "." for words in originals]


def test_planted_near_duplicates_are_removed(tmp_path: Path) -> None:
    pytest.importorskip("datatrove", reason="needs: pip install 'electra[scale]'")
    originals = corpus(tmp_path / "texts")
    program = [sys.executable, str(ROOT / "examples" / "near_duplicates.py"), "texts", "--out", "clean", "--tasks", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "clean: 12 documents stay  (next: electra prepare clean --out DATA)" in done.stdout
    files = sorted((tmp_path / "clean").iterdir())
    assert [path.name for path in files] == ["00000.jsonl", "00001.jsonl"] and not (tmp_path / "clean.work").exists()
    kept = [json.loads(line)["text"] for path in files for line in path.read_text().splitlines()]
    as_originals = {text.replace("otherwise", "") for text in kept}
    assert len(kept) == len(as_originals) == ORIGINALS
    assert {*originals[COPIES:]} <= {*kept}, "whatever has no near-copy stays as it is"
    prepare([str(tmp_path / "clean")], out=tmp_path / "data", options=PrepareOptions(vocab_size=200), workers=1)
    data = open_data(tmp_path / "data")
    assert data.train.n_sentences + data.held_out.n_sentences == ORIGINALS
