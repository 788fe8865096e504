"""Seeds that are not done: `unfinished/seed-N` in a task's folder holds a checkpoint from which a seed goes on exactly.

Weights, Adam's averages and the place in the data are all there is to save: every random draw has an address.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from electra.checkpoint import store
from electra.checkpoint.folder import changes
from electra.errors import CheckpointError, ConfigError
from electra.finetune.trainer import Trial, TrialState
from electra.fsio import remove_folder, remove_leftovers
from electra.progress import say
from electra.records import read_record
from electra.tasks.rows import Features
from electra.train.execution import common_facts

FOLDER = "unfinished"


class Unfinished:
    """The unfinished seeds of a task's folder; `settings` is what must not change before they are done."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder, self._settings = folder, dict(settings)

    def load(self, trial: Trial) -> None:
        """Let a trial go on from where its seed stands, if it has begun; refused where other settings began it."""
        run = self._run(trial.seed)
        store.clean(run)
        found = store.latest(run)
        if found is None:
            return
        tensors, state = store.load(found)
        where = found / store.STATE
        self._require_same(trial, state.get("settings"))
        standing = read_record(TrialState, state.get("trial"), key="trial", where=where, error=CheckpointError)
        if changed := changes(state.get("execution") or {}, common_facts(trial.device, trial.compute, trial.ops)):
            say(
                f"warning: seed {trial.seed} goes on in another way than before: {'; '.join(changed[:4])};"
                " its result is not bit for bit that of an uninterrupted run"
            )
        try:
            trial.go_on(tensors, standing)
        except (KeyError, RuntimeError) as error:
            reason = f"is not of this model: {str(error).partition(chr(10))[0]}"
            raise CheckpointError(found, reason, fix=f"remove {self._folder / FOLDER}") from error
        say(f"seed {trial.seed} goes on from step {standing.step:,} of {trial.steps:,}")

    def save(self, trial: Trial) -> None:
        """Replace what is held of a seed by where it stands now."""
        tensors, standing = trial.state()
        state = {
            "settings": self._recorded(trial),
            "execution": common_facts(trial.device, trial.compute, trial.ops),
            "trial": asdict(standing),
        }
        done = trial.restarts * trial.steps + trial.step  # a step after a restart comes after all before it
        store.save(self._run(trial.seed), step=done, tensors=tensors, state=state, keep=1)

    def remove(self, seed: int) -> None:
        """Forget a seed that is done."""
        remove_folder(self._run(seed))
        place = self._folder / FOLDER
        remove_leftovers(place)
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()

    def _run(self, seed: int) -> Path:
        return self._folder / FOLDER / f"seed-{seed}"

    def _recorded(self, trial: Trial) -> dict[str, Any]:
        return {**self._settings, "training data": checksum(trial.features)}

    def _require_same(self, trial: Trial, there: Any) -> None:
        known, wanted = there if isinstance(there, dict) else {}, self._recorded(trial)
        if changed := [
            f"{key} {known.get(key)!r}, now {wanted[key]!r}" for key in wanted if known.get(key) != wanted[key]
        ]:
            reason = f"{self._run(trial.seed)} was begun with other settings: {'; '.join(changed[:4])}"
            raise ConfigError("--out", reason, fix="remove it, choose a new folder, or give the same settings")


def checksum(features: Features) -> str:
    """Eight digits that change with the sequences or their targets."""
    digest = 0
    for ids in features.ids:
        digest = zlib.crc32(np.asarray(ids, np.int32).tobytes(), digest)
    digest = zlib.crc32(np.asarray(features.a_lengths, np.int64).tobytes(), digest)
    targets = features.targets
    for part in targets if isinstance(targets, list) else [] if targets is None else [targets]:
        digest = zlib.crc32(np.asarray(part).tobytes(), digest)
    return f"{digest:08x}"
