"""The short form of `python -m electra.soak kills` and `signals`, what it compares by, and what it found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import test_finetune_suite as tuning

from electra.errors import CheckpointError
from electra.finetune import suite, trainer
from electra.manifest import commit_folder
from electra.soak.end_state import DONE, differences, end_state, lost, progress_in


def soak(*arguments: str) -> str:
    """What a campaign prints. It forks, and therefore gets a process that has no threads."""
    command = [sys.executable, "-m", "electra.soak", *arguments]
    paths = {"PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run(command, env=tuning.os.environ | paths, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promise_08_11_interrupted_commands_end_as_their_uninterrupted_twins() -> None:
    sums = [line.split()[1:] for line in soak("short").splitlines() if line.startswith("all ")]
    (inside, elsewhere, *of_kills), (stopped, done, *of_signals) = sums
    assert int(inside) + int(elsewhere) == 3 == int(stopped) + int(done) and int(inside) >= 2
    assert {*of_kills, *of_signals} == {"0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A fine-tuned seed, an unfinished one's checkpoint and a unit, as small as they can be."""
    out = tmp_path / "out"
    for place, values in (
        ("seed-0", {"loss": 1.0, "time_s": 3.0}),
        ("unfinished/seed-1/checkpoints/step-00000004", {}),
    ):
        with commit_folder(out / place) as aside:
            (aside / "state.json").write_text(json.dumps(values))
            (aside / "model.safetensors").write_bytes(b"weights")
            (aside / "optimizer.safetensors").write_bytes(b"averages")
    (out / ".work" / "units").mkdir(parents=True)
    (out / ".work" / "units" / "1.unit").write_bytes(b"tokens")
    return out


def test_a_twin_differs_by_its_bytes_but_not_by_the_clock(folder: Path) -> None:
    twin = end_state(folder)
    shutil.rmtree(folder / "seed-0")
    with commit_folder(folder / "seed-0") as aside:
        (aside / "state.json").write_text(json.dumps({"loss": 1.0, "time_s": 4.0}))
        (aside / "model.safetensors").write_bytes(b"weights")
        (aside / "optimizer.safetensors").write_bytes(b"averages")
    assert differences(folder, twin) == []
    (folder / ".tmp-model-1234").write_bytes(b"")
    (folder / ".work" / "units" / "1.unit").write_bytes(b"Tokens")
    assert differences(folder, twin) == [".tmp-model-1234", ".work/units/1.unit"]
    (folder / "seed-0" / "state.json").write_text("{}")
    (problem,) = differences(folder, twin)
    assert "state.json: has 2 bytes" in problem


def test_progress_never_goes_back(folder: Path) -> None:
    before = progress_in(folder)
    assert before == {"unit 1.unit": 1, "out seed-0": DONE, "out seed-1": 4}
    shutil.rmtree(folder / "unfinished")
    (folder / ".work" / "units" / "1.unit").unlink()
    assert lost(before, progress_in(folder)) == ["out seed-1", "unit 1.unit"]
    (folder / "data.json").write_text("{}")
    assert lost(before, progress_in(folder)) == [], "finished data has no units"
    (folder / "seed-0" / "model.safetensors").write_bytes(b"part")
    with pytest.raises(CheckpointError, match="has 4 bytes"):
        progress_in(folder)


def test_defect_a_kill_after_a_seed_left_its_unfinished_state_for_ever(tmp_path: Path, monkeypatch: Any) -> None:
    data, out = tuning.table(tmp_path), tmp_path / "out"

    def die(*arguments: object) -> None:
        raise MemoryError  # nothing of ours catches it

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "SAVE_EVERY_S", 0.0)
        patch.setattr(suite, "_add_result", die)
        with pytest.raises(MemoryError):
            tuning.run(data, out, 0)
    for place in (out / "unfinished" / "seed-0", out / "seed-0"):
        assert place.is_dir()
    (out / ".tmp-seed-0-1a2b3c4d").mkdir()
    result = tuning.run(data, out, 0)
    assert tuning.scores(result) == tuning.scores(tuning.run(data, tmp_path / "whole", 0))
    here, whole = (sorted(path.name for path in folder.iterdir()) for folder in (out, tmp_path / "whole"))
    assert here == whole == [".results.lock", "evaluation.json", "manifest.json", "results.json", "seed-0"]
