"""Train a vocabulary that is the same, byte for byte, for the same text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from electra.corpus.scripts import SPACELESS, script_shares, spaceless_share
from electra.errors import ConfigError, DataError
from electra.jsontext import parse_json
from electra.tokenizer.alphabet import Alphabet
from electra.tokenizer.backends import BYTE_CHARACTERS, SPECIALS, UNK, byte_pieces, normalizer, word_pattern
from electra.tokenizer.codec import Tokenizer

Trained = Literal["wordpiece", "bytes"]

SPACELESS_SHARE = 0.1
"""More letters than this in scripts without spaces: byte-level BPE."""
ALPHABET_SHARE = 1 / 3
"""Part of a WordPiece vocabulary that single characters may take; with more, byte-level BPE has more room for words."""
MIN_COUNT = 2
SMALLEST: dict[Trained, int] = {"wordpiece": 100, "bytes": 300}
_LINE_WORDS = 10_000


@dataclass(frozen=True, slots=True)
class Choice:
    """A kind of tokenizer, and the reason in words."""

    kind: Trained
    reason: str


def choose(characters: Mapping[str, int], *, vocab_size: int, lowercase: bool, strip_accents: bool) -> Choice:
    """The kind that suits a text, given how often each of its characters occurs."""
    shares = script_shares(characters)
    share = spaceless_share(shares)
    if share > SPACELESS_SHARE:
        names = ", ".join(name.replace("_", " ") for name in shares if name in SPACELESS and shares[name] >= 0.01)
        return Choice("bytes", f"{share:.0%} of the letters are of scripts without spaces ({names})")
    alphabet = Alphabet.of(characters, lowercase=lowercase, strip_accents=strip_accents)
    if alphabet.entries > max(vocab_size * ALPHABET_SHARE, len(BYTE_CHARACTERS)):
        reason = f"its {len(alphabet.counts):,} characters would take {alphabet.entries:,} of {vocab_size:,} entries"
        return Choice("bytes", reason)
    return Choice("wordpiece", f"{1 - share:.0%} of the letters are of scripts with spaces" if shares else "no letters")


def train(
    lines: Iterable[str],
    *,
    vocab_size: int,
    kind: Trained = "wordpiece",
    characters: Mapping[str, int] | None = None,
    lowercase: bool = False,
    strip_accents: bool = False,
) -> Tokenizer:
    """A tokenizer with `vocab_size` entries, or as many as the text supports.

    `characters` are those of the whole corpus where the lines are a sample of it: each gets an entry of a WordPiece
    vocabulary, except those too rare to be learned where there are many of them.
    """
    if vocab_size < SMALLEST[kind]:
        reason = f"{vocab_size} is too small for a vocabulary of {'bytes' if kind == 'bytes' else 'WordPieces'}"
        raise ConfigError("--vocab-size", reason, fix=f"at least {SMALLEST[kind]}")
    folded = {"lowercase": lowercase, "strip_accents": strip_accents}
    if kind == "bytes":
        return _train_bytes(lines, vocab_size, **folded)
    return _train_wordpiece(lines, vocab_size, characters, **folded)


def _train_bytes(lines: Iterable[str], vocab_size: int, *, lowercase: bool, strip_accents: bool) -> Tokenizer:
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        show_progress=False,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(BYTE_CHARACTERS.values()),
        limit_alphabet=len(BYTE_CHARACTERS),
    )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizer("bytes", lowercase=lowercase, strip_accents=strip_accents)
    backend.pre_tokenizer = byte_pieces()
    backend.train_from_iterator(lines, trainer)
    learned = parse_json(backend.to_str(), where="tokenizers")["model"]
    vocab = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    if len(vocab) == len(SPECIALS) + len(BYTE_CHARACTERS):
        raise DataError("corpus", "too little text to train a vocabulary on")
    merges = [(left, right) for left, right in learned["merges"]]
    return Tokenizer(vocab, kind="bytes", merges=merges, lowercase=lowercase, strip_accents=strip_accents)


def _train_wordpiece(
    lines: Iterable[str],
    vocab_size: int,
    characters: Mapping[str, int] | None,
    *,
    lowercase: bool,
    strip_accents: bool,
) -> Tokenizer:
    words = count_words(lines, lowercase=lowercase, strip_accents=strip_accents)
    if not words:
        raise DataError("corpus", "no words to train a vocabulary on")
    if characters is None:
        characters = _characters(words)
    alphabet = Alphabet.of(characters, lowercase=lowercase, strip_accents=strip_accents)
    known, inside = alphabet.within(vocab_size - len(SPECIALS))
    pinned = [*SPECIALS, *sorted("##" + char for char in inside)]
    # The trainer numbers characters in the order of a hash table that differs from run to run, and breaks ties by
    # number. Given as special tokens and initial alphabet they have the same number every time.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        show_progress=False,
        special_tokens=pinned,
        initial_alphabet=sorted(known),
        limit_alphabet=len(known),
        continuing_subword_prefix="##",
    )
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_training_lines(words, known=known, inside=inside), trainer)
    learned = backend.get_vocab()
    vocab = sorted(learned, key=learned.__getitem__)[:vocab_size]
    return Tokenizer(vocab, kind="wordpiece", lowercase=lowercase, strip_accents=strip_accents)


def count_words(lines: Iterable[str], *, lowercase: bool, strip_accents: bool) -> dict[str, int]:
    """How often each word occurs, words being what stands between spaces and punctuation."""
    chunks: Counter[str] = Counter()
    for line in lines:
        chunks.update(line.split(" "))
    normalize = normalizer("wordpiece", lowercase=lowercase, strip_accents=strip_accents).normalize_str
    pre_tokenize = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in pre_tokenize(normalize(chunk)):
            words[word] += count
    return words


def _characters(words: Mapping[str, int]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    return counts


def _training_lines(words: Mapping[str, int], *, known: set[str], inside: set[str]) -> Iterator[str]:
    """Every word as often as it occurred, sorted, cut as the tokenizer will cut it."""
    pieces: Counter[str] = Counter()
    cut = re.compile(word_pattern(inside)).findall
    for word, count in words.items():
        for piece in cut(word):
            pieces[piece] += count
    for piece in sorted(pieces):
        if len(piece) > 1 or piece in known:
            count = pieces[piece]
            while count > 0:
                yield " ".join([piece] * min(count, _LINE_WORDS))
                count -= _LINE_WORDS
