"""What the API asks: the model, computed by one thread, and the run that trains it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra.checkpoint import store
from electra.errors import ElectraError
from electra.progress import say
from electra.serve.batching import Batcher
from electra.serve.networks import Networks, Query, is_run, load_networks
from electra.serve.run_follow import RunFollower


class NotReady(Exception):
    """The run has no checkpoint yet."""


class Service:
    """A model, or a run whose newest checkpoint is the model: a newer one is loaded as soon as it is there."""

    def __init__(self, path: Path, *, generator: Path | None = None) -> None:
        self._path, self._generator = path, generator
        self.run = RunFollower(path) if is_run(path) else None
        saved = store.steps(path)
        self._newest = saved[-1].name if saved else ""
        begun = self.run is not None and not saved
        self.networks: Networks | None = None if begun else load_networks(path, generator=generator)
        self.batcher = Batcher(self._compute, idle=self._load_newer)

    @property
    def name(self) -> str:
        return self._path.resolve().name

    def _compute(self, query: Query, items: Sequence[Any]) -> Sequence[Any]:
        networks = self.networks
        if networks is None:
            return [NotReady(f"{self.name} has no checkpoint yet")] * len(items)
        return networks.answers(query, items)

    def _load_newer(self) -> None:
        """Load the newest checkpoint of a run, once; one that cannot be used is named, and the model stays."""
        saved = store.steps(self._path) if self.run is not None else []
        if not saved or saved[-1].name == self._newest:
            return
        self._newest = saved[-1].name
        try:
            self.networks = load_networks(self._path, generator=self._generator)
        except (ElectraError, OSError) as error:  # removed while it was read, for example
            say(f"warning: {error}; what was served before is served on")
