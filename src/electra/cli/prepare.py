"""`electra prepare`: text in any common format into a tokenizer and token shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from electra.shards.request import Result


@click.command("prepare")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DATA", help="Folder to write.")
@click.option("--vocab", type=click.Path(path_type=Path), metavar="FILE", help="A BERT vocab.txt to use as it is.")
@click.option("--vocab-size", default=30522, show_default=True, help="Entries of the vocabulary to train.")
@click.option("--held-out", multiple=True, metavar="FILE", help="Text to evaluate on; may be given several times.")
@click.option("--held-out-share", default=0.005, show_default=True, help="Documents kept apart without --held-out.")
@click.option("--workers", type=int, metavar="N", help="Processes on this machine.  [default: its cores]")
@click.option("--worker", metavar="i/n", help="Do the i-th of n parts; run all n, here or elsewhere, on one --out.")
@click.option("--text-column", default="text", show_default=True, help="Column of JSONL, CSV and Parquet files.")
@click.option("--cased", is_flag=True, help="Keep upper case (and accents).")
@click.option("--keep-accents", is_flag=True, help="Keep accents although lower-casing.")
@click.option("--no-split-sentences", is_flag=True, help="Take every line as one sentence.")
@click.option("--min-chars", default=5, show_default=True, help="Leave out documents with fewer characters.")
def command(
    sources: tuple[str, ...],
    out: Path,
    vocab: Path | None,
    vocab_size: int,
    held_out: tuple[str, ...],
    held_out_share: float,
    workers: int | None,
    worker: str | None,
    text_column: str,
    cased: bool,
    keep_accents: bool,
    no_split_sentences: bool,
    min_chars: int,
) -> None:
    """Make a tokenizer and token shards from text.

    SOURCE is a file (.txt .jsonl .csv .parquet, also .gz .bz2 .xz .zst), a folder, a quoted glob, - for standard
    input, or hf:NAME[:CONFIG][/SPLIT] from the hub. In .txt files a line is a paragraph or a sentence and a blank
    line ends a document; elsewhere a row is a document. Run the same command again to continue.
    """
    from electra.shards.build import prepare
    from electra.shards.options import PrepareOptions

    options = PrepareOptions(
        vocab_size=vocab_size,
        lowercase=not cased,
        strip_accents=not (cased or keep_accents),
        text_column=text_column,
        split_sentences=not no_split_sentences,
        min_chars=min_chars,
        held_out_share=held_out_share,
    )
    result = prepare(sources, out=out, options=options, vocab=vocab, held_out=held_out, workers=workers, worker=worker)
    click.echo(summary(result))


def summary(result: Result) -> str:
    """What the data holds and how fast it was made, for a person."""
    manifest = result.manifest
    if manifest is None:
        return f"{result.folder}: part done; the last worker, or the same command without --worker, writes the shards"
    counters, train, held_out = manifest["counters"], manifest["splits"]["train"], manifest["splits"]["held-out"]
    tokens = train["tokens"] + held_out["tokens"]
    unknown = train["unknown"] + held_out["unknown"]
    vocabulary = manifest["tokenizer"]
    unused = f", {vocabulary['unused']:,} of them unused" if vocabulary["unused"] else ""
    dropped = [
        f"{counters['dropped_short']:,} too short",
        f"{counters['dropped_duplicate']:,} seen before",
        *([f"{counters['dropped_also_held_out']:,} also held out"] if counters["dropped_also_held_out"] else []),
    ]
    lines = [
        f"{result.folder}: " + ("already prepared; every file verified" if result.already_done else "prepared"),
        f"  training    {train['documents']:,} documents, {train['sentences']:,} sentences, {train['tokens']:,} tokens",
        f"  held out    {held_out['documents']:,} documents, {held_out['sentences']:,} sentences, "
        f"{held_out['tokens']:,} tokens",
        f"  dropped     {', '.join(dropped)}",
        f"  vocabulary  {vocabulary['vocab_size']:,} entries{unused}; {unknown / tokens:.4%} of the tokens unknown",
    ]
    if not result.already_done and result.seconds:
        speed = result.text_bytes / 1e6 / result.seconds
        earlier = f", {result.units_kept} of {result.units} parts from an earlier run" if result.units_kept else ""
        lines.append(f"  took        {result.seconds:.1f} s, {speed:.1f} MB/s{earlier}")
    return "\n".join(lines)
