"""What can be chosen when preparing data, and what must not change when a preparation is continued."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_type_hints

from electra.config.keys import of_type
from electra.corpus.encodings import check_encoding
from electra.errors import ConfigError

MAX_VOCAB = 1 << 21
"""Entries that can be trained; the largest vocabularies in use have a million."""
MAX_CHARS = 1 << 31
MAX_WORKERS = 1 << 12
TokenizerName = Literal["auto", "wordpiece", "bytes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareOptions:
    vocab_size: int = 30522
    """Entries of the vocabulary to train, fewer where the text supports no more; ignored where one is given."""
    tokenizer: TokenizerName = "auto"
    """Kind of tokenizer to train: WordPiece, byte-level BPE, or the one that suits the scripts of the text."""
    lowercase: bool | None = None
    """Fold upper case to lower case. None: as the given vocabulary was made; no, where one is trained."""
    strip_accents: bool | None = None
    """Remove accents. None: as the given vocabulary was made; no, where one is trained."""
    text_column: str = "text"
    """Column with the text in JSONL, CSV and Parquet files."""
    encoding: str | None = None
    """Encoding of text files without a byte order mark; None means UTF-8, or what an HTML page names."""
    split_sentences: bool = True
    """Split lines into sentences; otherwise every line is one."""
    min_chars: int = 5
    """Leave out documents with fewer characters."""
    held_out_share: float = 0.005
    """Share of the tokens kept for evaluation, at least 16,384 or a tenth, where no held-out files are given."""

    def check(self) -> None:
        for name, kind in get_type_hints(PrepareOptions).items():
            of_type(getattr(self, name), kind, f"--{name.replace('_', '-')}")
        if not 0 < self.held_out_share <= 0.5:
            raise ConfigError("--held-out-share", f"{self.held_out_share} is not above 0 and at most 0.5")
        for option, value, least, most in (
            ("--min-chars", self.min_chars, 0, MAX_CHARS),
            ("--vocab-size", self.vocab_size, 1, MAX_VOCAB),
        ):
            if not least <= value <= most:
                raise ConfigError(option, f"{value} is not from {least} to {most}")
        if self.encoding is not None:
            check_encoding(self.encoding)
        if not self.text_column:
            raise ConfigError("--text-column", "is empty")

    def recorded(self, *, vocab_sha256: str | None, held_out_given: bool) -> dict[str, Any]:
        """As they go into data.json: only what has an effect."""
        record: dict[str, Any] = {"vocab_sha256": vocab_sha256, **asdict(self)}
        if self.encoding is None:
            del record["encoding"]
        if vocab_sha256 is not None:
            del record["vocab_size"], record["tokenizer"]
        if held_out_given:
            del record["held_out_share"]
        return record


def parse_worker(text: str | None) -> tuple[int, int]:
    """`2/3` as (1, 3): the second of three, counted from 0."""
    if text is None:
        return 0, 1
    number, slash, total = text.partition("/")
    if not (slash and number.isascii() and number.isdigit() and total.isascii() and total.isdigit()):
        raise ConfigError("--worker", f"'{text}' is not of the form i/n", fix="the second of three machines is 2/3")
    if max(len(number), len(total)) > len(str(MAX_WORKERS)) or int(total) > MAX_WORKERS:
        raise ConfigError("--worker", "are too many", fix=f"at most {MAX_WORKERS}")
    if not 1 <= int(number) <= int(total):
        raise ConfigError("--worker", f"there is no worker {text}", fix=f"they are 1/{total} to {total}/{total}")
    return int(number) - 1, int(total)


def refuse_changes(before: dict[str, Any], now: dict[str, Any], *, folder: object) -> None:
    """ConfigError that lists what differs from the preparation that `folder` began with."""
    changed = [
        f"{key}: {_show(before.get(key))} -> {_show(now.get(key))}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]
    if changed:
        raise ConfigError(str(folder), f"was prepared differently: {'; '.join(changed)}", fix="use another --out")


def _show(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
