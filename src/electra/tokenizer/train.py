"""Train a WordPiece vocabulary that is the same, byte for byte, for the same text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from electra.errors import ConfigError, DataError
from electra.tokenizer.codec import MAX_WORD_CHARS, SPECIALS, UNK, Tokenizer, bert_normalizer

COVERAGE = 0.9999
"""Share of all characters that have entries of their own; the rarer rest is unknown."""
ALPHABET_SHARE = 1 / 3
"""Part of the vocabulary that single characters may take."""
SMALLEST = 100
MIN_COUNT = 2
_LINE_WORDS = 10_000


def train(lines: Iterable[str], *, vocab_size: int, lowercase: bool = True, strip_accents: bool = True) -> Tokenizer:
    """A tokenizer with exactly `vocab_size` entries; `[unusedN]` fill what a small text leaves open."""
    if vocab_size < SMALLEST:
        raise ConfigError("--vocab-size", f"{vocab_size} is too small", fix=f"at least {SMALLEST}")
    words = count_words(lines, lowercase=lowercase, strip_accents=strip_accents)
    if not words:
        raise DataError("corpus", "no words to train a vocabulary on")
    alphabet, inside = _alphabet(words, limit=int(vocab_size * ALPHABET_SHARE))
    pinned = [*SPECIALS, *sorted("##" + char for char in inside)]
    # The trainer numbers characters in the order of a hash table that differs from run to run, and breaks ties by
    # number. Given as special tokens and initial alphabet they have the same number every time.
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_COUNT,
        show_progress=False,
        special_tokens=pinned,
        initial_alphabet=sorted(alphabet),
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
    )
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.train_from_iterator(_training_lines(words, known=alphabet), trainer)
    learned = backend.get_vocab()
    vocab = sorted(learned, key=learned.__getitem__)[:vocab_size]
    vocab += [f"[unused{number}]" for number in range(vocab_size - len(vocab))]
    return Tokenizer(vocab, lowercase=lowercase, strip_accents=strip_accents)


def count_words(lines: Iterable[str], *, lowercase: bool, strip_accents: bool) -> dict[str, int]:
    """How often each word (a piece that WordPiece would see) occurs."""
    chunks: Counter[str] = Counter()
    for line in lines:
        chunks.update(line.split(" "))
    normalize = bert_normalizer(lowercase=lowercase, strip_accents=strip_accents).normalize_str
    pre_tokenize = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word, _ in pre_tokenize(normalize(chunk)):
            if len(word) <= MAX_WORD_CHARS:
                words[word] += count
    return words


def _alphabet(words: dict[str, int], *, limit: int) -> tuple[set[str], set[str]]:
    """The most frequent characters, and those of them that were seen inside words."""
    counts: Counter[str] = Counter()
    later: set[str] = set()
    for word, count in words.items():
        later.update(word[1:])
        for char in word:
            counts[char] += count
    enough = counts.total() * COVERAGE
    covered, entries = 0, 0
    alphabet: set[str] = set()
    for char in sorted(counts, key=lambda char: (-counts[char], char)):
        entries += 1 + (char in later)
        if covered >= enough or entries > limit:
            break
        alphabet.add(char)
        covered += counts[char]
    return alphabet, alphabet & later


def _training_lines(words: dict[str, int], *, known: set[str]) -> Iterator[str]:
    """Every word as often as it occurred, sorted; those with an unknown character would be learned with a hole."""
    for word in sorted(words):
        if known.issuperset(word):
            count = words[word]
            while count > 0:
                yield " ".join([word] * min(count, _LINE_WORDS))
                count -= _LINE_WORDS
