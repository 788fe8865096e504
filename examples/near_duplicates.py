"""Near-duplicates out of a corpus, by datatrove's MinHash: `python examples/near_duplicates.py SOURCE... --out CLEAN`.

SOURCE is whatever `electra prepare` reads. CLEAN gets one .jsonl file a task, for `electra prepare CLEAN --out DATA`.
Run it again after an interruption: finished tasks are skipped. Needs: pip install 'electra[scale]'.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from datatrove.data import Document, DocumentsPipeline
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup.minhash import (
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig
from datatrove.utils.word_tokenizers import WordTokenizer

from electra.corpus.blocks import Blocks
from electra.corpus.documents import Tally, documents
from electra.corpus.sources import resolve

SIMILAR = MinhashConfig(n_grams=5, num_buckets=14, hashes_per_bucket=8, hash_config=HashConfig(hash_fc="sha1"))
"""Documents that share about 72 % of their 5-grams are found with even odds; 85 % in 98 of 100 cases."""


class Words(WordTokenizer):
    """What spaces separate: datatrove's own tokenizers need a package for each language."""

    def word_tokenize(self, text: str) -> list[str]:
        return text.split()

    def sent_tokenize(self, text: str) -> list[str]:
        return text.splitlines()

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        raise NotImplementedError("MinHash asks for words only")


class ReadDocuments(PipelineStep):
    """The documents of some sources, as `electra prepare` reads them; a task takes every n-th file."""

    name = "electra documents"

    def __init__(self, sources: list[str], *, work: Path, text_column: str = "text") -> None:
        super().__init__()
        self.sources, self.work, self.text_column = sources, work, text_column

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        found = resolve(self.sources, spool=self.work, text_column=self.text_column)
        for source in found[rank::world_size]:
            for block in Blocks(source, text_column=self.text_column):
                for lines in documents(block, text_column=self.text_column, tally=Tally()):
                    yield Document(text="\n".join(lines), id=source.name)


class WriteDocuments(PipelineStep):
    """One .jsonl file a task; it appears when it is whole."""

    name = "electra jsonl"

    def __init__(self, out: Path) -> None:
        super().__init__()
        self.out = out

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        path = self.out / f"{rank:05d}.jsonl"
        aside = path.with_name(f".tmp-{path.name}")
        with open(aside, "w", encoding="utf-8") as file:
            for document in data:
                file.write(json.dumps({"text": document.text}, ensure_ascii=False) + "\n")
                yield document
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps that run one after the other, in so many tasks side by side."""

    name: str
    steps: list[Any]
    tasks: int


def stages(sources: list[str], *, out: Path, work: Path, tasks: int, text_column: str = "text") -> list[Stage]:
    """The four stages of MinHash, each for an executor of datatrove: this machine's, SLURM's or Ray's."""
    read = ReadDocuments(sources, work=work, text_column=text_column)
    signatures, buckets, removed = (str(work / name) for name in ("signatures", "buckets", "removed"))
    sign = MinhashDedupSignature(signatures, config=SIMILAR, language=Words())
    pair = MinhashDedupBuckets(signatures, buckets, config=SIMILAR, only_dedup_in_index=False)
    return [
        Stage("sign", [read, sign], tasks),
        Stage("pair", [pair], SIMILAR.num_buckets),
        Stage("cluster", [MinhashDedupCluster(buckets, removed, config=SIMILAR)], 1),
        Stage("write", [read, MinhashDedupFilter(removed), WriteDocuments(out)], tasks),
    ]


@click.command()
@click.argument("sources", nargs=-1, required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the documents that stay.")
@click.option("--tasks", default=1, show_default=True, type=click.IntRange(1), help="Parts, at most one a file.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Tasks at a time.")
@click.option("--text-column", default="text", show_default=True, help="Column of JSONL, CSV and Parquet files.")
def main(sources: tuple[str, ...], out: Path, tasks: int, workers: int, text_column: str) -> None:
    """Remove near-duplicates on this machine."""
    work = out.with_name(f"{out.name}.work")
    out.mkdir(parents=True, exist_ok=True)
    for stage in stages(list(sources), out=out, work=work, tasks=tasks, text_column=text_column):
        logs = str(work / "logs" / stage.name)
        LocalPipelineExecutor(stage.steps, tasks=stage.tasks, workers=workers, logging_dir=logs).run()
    shutil.rmtree(work)
    kept = sum(path.read_bytes().count(b"\n") for path in out.glob("*.jsonl"))
    click.echo(f"{out}: {kept:,} documents stay  (next: electra prepare {out} --out DATA)")


if __name__ == "__main__":
    main()
