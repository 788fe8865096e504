"""An evenly spread, bounded part of a corpus: the same for the same text, whatever its size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from electra.corpus.blocks import Block, Blocks
from electra.corpus.documents import Tally, documents
from electra.corpus.sources import Source
from electra.progress import progress

SAMPLE_BYTES = 64 << 20
SLICE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Sample:
    """Slices of the corpus and the sha256 of their content."""

    blocks: list[Block]
    sha256: str

    def lines(self, *, text_column: str) -> Iterator[str]:
        """Cleaned lines."""
        for block in self.blocks:
            for document in documents(block, text_column=text_column, tally=Tally()):
                yield from document


def sample(sources: Sequence[Source], *, text_column: str, limit: int = SAMPLE_BYTES) -> Sample:
    """Every k-th slice of the text, k being the power of two that keeps between half the limit and the limit."""
    kept: list[tuple[int, Block]] = []
    size, index, stride = 0, 0, 1
    total = sum(source.path.stat().st_size for source in sources)
    done = 0
    with progress("Sampling the corpus", total=total, unit="B") as bar:
        for source in sources:
            blocks = Blocks(source, text_column=text_column, block_bytes=SLICE_BYTES)
            for block in blocks:
                if index % stride == 0:
                    kept.append((index, block))
                    size += len(block.payload)
                while size > limit and len(kept) > 1:
                    stride *= 2
                    kept = [(at, block) for at, block in kept if at % stride == 0]
                    size = sum(len(block.payload) for _, block in kept)
                index += 1
                bar.update(done + blocks.position)
            done += source.path.stat().st_size
    digest = hashlib.sha256()
    for _, block in kept:
        digest.update(len(block.payload).to_bytes(8, "little"))
        digest.update(block.payload)
    return Sample([block for _, block in kept], digest.hexdigest())
