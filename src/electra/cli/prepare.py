"""`electra prepare`: text in any common format into a tokenizer and token shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from electra.cli.lines import echo
from electra.progress import counted

if TYPE_CHECKING:
    from electra.shards.options import PrepareOptions, TokenizerName
    from electra.shards.request import Result


@click.command("prepare")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", type=click.Path(path_type=Path), metavar="DATA", help="Folder to write.")
@click.option("--inspect", is_flag=True, help="Show what is in the text and what would be kept; write no data.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="With --inspect: also as a page.")
@click.option(
    "--vocab",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A vocabulary to use as it is: a BERT vocab.txt, or the tokenizer of a run, of data, of an export or of"
    " electra:small.",
)
@click.option("--vocab-size", default=30522, show_default=True, help="Entries of the vocabulary to train.")
@click.option("--held-out", multiple=True, metavar="FILE", help="Text to evaluate on; may be given several times.")
@click.option("--held-out-share", default=0.005, show_default=True, help="Tokens kept apart without --held-out.")
@click.option("--workers", type=int, metavar="N", help="Processes on this machine.  [default: its cores]")
@click.option("--worker", metavar="i/n", help="Do the i-th of n parts; run all n, here or elsewhere, on one --out.")
@click.option("--text-column", default="text", show_default=True, help="Column of JSONL, CSV and Parquet files.")
@click.option("--encoding", metavar="NAME", help="Of text files that are not UTF-8: windows-1252, cp932, gb18030, ...")
@click.option(
    "--tokenizer",
    type=click.Choice(["auto", "wordpiece", "bytes"]),
    default="auto",
    show_default=True,
    help="Kind to train: WordPiece, byte-level BPE, or the one that suits the scripts of the text.",
)
@click.option(
    "--lowercase/--no-lowercase",
    default=None,
    help="Fold upper case to lower case, or not.  [default: as --vocab was made; not where a vocabulary is trained]",
)
@click.option(
    "--strip-accents/--no-strip-accents",
    default=None,
    help="Remove accents, or not.  [default: as --vocab was made; not where a vocabulary is trained]",
)
@click.option("--no-split-sentences", is_flag=True, help="Take every line as one sentence.")
@click.option("--min-chars", default=5, show_default=True, help="Leave out documents with fewer characters.")
def command(
    sources: tuple[str, ...],
    out: Path | None,
    inspect: bool,
    html: Path | None,
    vocab: Path | None,
    vocab_size: int,
    held_out: tuple[str, ...],
    held_out_share: float,
    workers: int | None,
    worker: str | None,
    text_column: str,
    encoding: str | None,
    tokenizer: TokenizerName,
    lowercase: bool | None,
    strip_accents: bool | None,
    no_split_sentences: bool,
    min_chars: int,
) -> None:
    """Make a tokenizer and token shards from text.

    SOURCE is a file (.txt .md .html .jsonl .csv .tsv .parquet, also .gz .bz2 .xz .zst), a folder, a quoted glob, - for
    standard input, or hf:NAME[:CONFIG][/SPLIT] from the hub. In .txt files a line is a paragraph or a sentence and a
    blank line ends a document; a .md or .html file is one document; elsewhere a row is one. Run the same command again
    to continue.
    """
    from electra.shards.options import PrepareOptions

    if (out is None) != inspect or (html is not None and not inspect):
        raise click.UsageError("give --out DATA to prepare, or --inspect (with --html FILE or without) to look first")

    options = PrepareOptions(
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        lowercase=lowercase,
        strip_accents=strip_accents,
        text_column=text_column,
        encoding=encoding,
        split_sentences=not no_split_sentences,
        min_chars=min_chars,
        held_out_share=held_out_share,
    )
    if vocab is not None:
        from electra.interop.bundled import bundled_folder

        vocab = bundled_folder(vocab)
    if out is None:
        _inspect(sources, options=options, vocab=vocab, held_out=held_out, html=html)
        return
    from electra.shards.build import prepare

    result = prepare(sources, out=out, options=options, vocab=vocab, held_out=held_out, workers=workers, worker=worker)
    echo(summary(result))


def _inspect(
    sources: tuple[str, ...],
    *,
    options: PrepareOptions,
    vocab: Path | None,
    held_out: tuple[str, ...],
    html: Path | None,
) -> None:
    """Print what the sources hold, and write the page where one was asked for."""
    from electra.inspection import as_text, inspect_corpus

    found = inspect_corpus(sources, options=options, vocab=vocab, held_out=held_out)
    echo(as_text(found))
    if html is not None:
        from electra.report.inspection_page import write_inspection

        echo(f"\npage: {write_inspection(found, html)}")


def summary(result: Result) -> str:
    """What the data holds and how fast it was made, for a person."""
    from electra.inspection.terminal import split_words

    manifest = result.manifest
    if manifest is None:
        return f"{result.folder}: part done; the last worker, or the same command without --worker, writes the shards"
    counters, train, held_out = manifest["counters"], manifest["splits"]["train"], manifest["splits"]["held-out"]
    tokens = train["tokens"] + held_out["tokens"]
    dropped = [
        f"{counters['dropped_short']:,} too short",
        f"{counters['dropped_duplicate']:,} seen before",
        *([f"{counters['dropped_also_held_out']:,} also held out"] if counters["dropped_also_held_out"] else []),
    ]
    split = counters.get("documents_split", 0)  # not counted in older data
    parts = f"; {counted(split, 'long document')} split between both" if split else ""
    lines = [
        f"{result.folder}: " + ("already prepared; every file verified" if result.already_done else "prepared"),
        f"  training    {split_words(train)}",
        f"  held out    {split_words(held_out)} ({held_out['tokens'] / tokens:.1%}){parts}",
        f"  dropped     {', '.join(dropped)}",
        *_vocabulary(manifest),
    ]
    lines += _rows_at_default_length(result.folder)
    if not result.already_done and result.seconds:
        speed = result.text_bytes / 1e6 / result.seconds
        earlier = f", {result.units_kept} of {result.units} parts from an earlier run" if result.units_kept else ""
        lines.append(f"  took        {result.seconds:.1f} s, {speed:.1f} MB/s{earlier}")
    return "\n".join(lines)


def _rows_at_default_length(folder: Path) -> list[str]:
    """What pre-training's default rows keep of the text, and warnings where that is little."""
    from electra.batches.epoch_plan import plan_epoch
    from electra.batches.kept import describe, warnings
    from electra.batches.layout import Specials
    from electra.config.schema import DataConfig
    from electra.shards.dataset import open_data

    train, data = open_data(folder).train, DataConfig()
    layout = plan_epoch(train, data, Specials(pad=0, cls=0, sep=0, mask=0), seed=0, epoch=0)
    found = [f"  rows        data.length={data.length} {describe(layout, data)}"]
    return found + [f"  warning     {warning}" for warning in warnings(layout, train, data)]


def _vocabulary(manifest: Mapping[str, Any]) -> list[str]:
    """The tokenizer and what is unknown to it, and a warning where that is much."""
    from electra.inspection.advice import MOST_UNKNOWN
    from electra.shards.trained_tokenizer import NAMES

    made, counters = manifest["tokenizer"], manifest["counters"]
    entries = f"  vocabulary  {made['vocab_size']:,} entries of {NAMES[made.get('kind', 'bert')]}"
    if "characters" not in counters:  # version 0.2 counted tokens
        return [entries]
    share = counters["unknown_characters"] / max(1, counters["characters"])
    found = [f"{entries}; {f'{share:.4%}' if share else 'none'} of the characters unknown"]
    if share > MOST_UNKNOWN:
        fix = "train a vocabulary on this text (no --vocab), or a larger one (--vocab-size)"
        found.append(f"  warning     {share:.2%} of the characters are [UNK]; {fix}")
    return found
