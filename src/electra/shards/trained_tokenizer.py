"""The tokenizer that suits a corpus: its kind chosen by the scripts of the text, said in one line, and trained."""

from __future__ import annotations

from electra.corpus.sample import SAMPLE_BYTES, Sample
from electra.progress import progress, say
from electra.shards.options import PrepareOptions
from electra.tokenizer.codec import Tokenizer
from electra.tokenizer.train import Choice, choose, train

NAMES = {"bert": "BERT's WordPiece", "wordpiece": "WordPiece", "bytes": "byte-level BPE"}
"""The kinds of tokenizer, for a person."""
BPE_SAMPLE_BYTES = 16 << 20
"""Text that byte-level BPE is trained on, at most: without spaces nearly every piece is new, and training slow."""


def choose_tokenizer(characters: dict[str, int], *, options: PrepareOptions) -> Choice:
    """The kind of tokenizer for a text, given how often each of its characters occurs."""
    if options.tokenizer != "auto":
        return Choice(options.tokenizer, "as asked")
    return choose(
        characters,
        vocab_size=options.vocab_size,
        lowercase=bool(options.lowercase),
        strip_accents=bool(options.strip_accents),
    )


def train_tokenizer(part: Sample, *, options: PrepareOptions) -> Tokenizer:
    """A tokenizer for the corpus that the sample is of."""
    choice = choose_tokenizer(part.characters, options=options)
    say(f"tokenizer: {NAMES[choice.kind]}, {choice.reason}")
    with progress("Training the vocabulary", unit="entries") as bar:
        limit = BPE_SAMPLE_BYTES if choice.kind == "bytes" else SAMPLE_BYTES
        tokenizer = train(
            part.lines(text_column=options.text_column, limit=limit),
            vocab_size=options.vocab_size,
            kind=choice.kind,
            characters=part.characters,
            lowercase=bool(options.lowercase),
            strip_accents=bool(options.strip_accents),
        )
        bar.update(tokenizer.vocab_size)
    if tokenizer.vocab_size < options.vocab_size:
        chosen = f", not {options.vocab_size:,}" if options.vocab_size != PrepareOptions().vocab_size else ""
        say(f"vocabulary: {tokenizer.vocab_size:,} entries{chosen}: nothing else occurs twice in the text")
    return tokenizer
