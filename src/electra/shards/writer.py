"""Append documents to the shards of one split, counting and hashing as they go."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np

from electra.shards.format import DOCUMENT, SENTENCE, SHARD_TOKENS
from electra.shards.units import Unit

_PARTS = ("tokens", "sentences", "documents")


class SplitWriter:
    """Writes NNNNN.tokens, .sentences and .documents into a folder; the end of its block ends the last shard."""

    def __init__(self, folder: Path, *, split: str, shard_tokens: int = SHARD_TOKENS) -> None:
        self._folder, self._split, self._shard_tokens = folder, split, shard_tokens
        self._open: dict[str, BinaryIO] = {}
        self._digests: dict[str, Any] = {}
        self.shards: list[dict[str, Any]] = []
        self.files: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            for file in self._open.values():
                with suppress(OSError):  # what is in its buffer, a full disk does not take
                    file.close()
            self._open = {}

    def add(self, unit: Unit, chosen: np.ndarray[Any, Any]) -> None:
        """Append those documents of the unit that the boolean array names."""
        if not chosen.any():
            return
        if not chosen.all():
            unit = select(unit, chosen)
        if not self._open or self.shards[-1]["tokens"] + len(unit.tokens) > self._shard_tokens:
            self._begin()
        shard = self.shards[-1]
        starts = shard["tokens"] + _before(unit.sentence_tokens)
        table = np.empty(len(unit.keys), DOCUMENT)
        table["id"] = unit.keys["id"]
        table["first"] = shard["sentences"] + _before(unit.document_sentences)
        for part, data in zip(_PARTS, (unit.tokens, starts.astype(SENTENCE), table), strict=True):
            content = data.tobytes()
            self._open[part].write(content)
            self._digests[part].update(content)
        shard["tokens"] += len(unit.tokens)
        shard["sentences"] += len(starts)
        shard["documents"] += len(table)

    def totals(self) -> dict[str, Any]:
        counts = {key: sum(shard[key] for shard in self.shards) for key in ("documents", "sentences", "tokens")}
        return {**counts, "shards": self.shards}

    def _begin(self) -> None:
        self._finish()
        name = f"{len(self.shards):05d}"
        self.shards.append({"name": name, "tokens": 0, "sentences": 0, "documents": 0})
        for part in _PARTS:
            self._open[part] = open(self._folder / f"{name}.{part}", "wb")  # noqa: SIM115  closed at the end
            self._digests[part] = hashlib.sha256()

    def _finish(self) -> None:
        for part, file in self._open.items():
            file.close()
            path = Path(file.name)
            record = {"bytes": path.stat().st_size, "sha256": self._digests[part].hexdigest()}
            self.files.append({"path": f"{self._split}/{path.name}", **record})
        self._open = {}


def select(unit: Unit, chosen: np.ndarray[Any, Any]) -> Unit:
    """The unit with only the chosen documents."""
    sentences = np.repeat(chosen, unit.document_sentences)
    return Unit(
        unit.keys[chosen],
        unit.document_sentences[chosen],
        unit.sentence_tokens[sentences],
        unit.tokens[np.repeat(sentences, unit.sentence_tokens)],
    )


def _before(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What precedes each entry: the running sum without the entry itself."""
    result: np.ndarray[Any, Any] = np.cumsum(counts, dtype=np.int64) - counts
    return result
