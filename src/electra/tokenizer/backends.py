"""The three kinds of tokenizer, each as the `tokenizers` object that `transformers` loads from tokenizer.json.

    bert       WordPiece exactly as BERT has it: for a vocabulary that was made so
    wordpiece  WordPiece that loses nothing it has an entry for: text in NFC, long words cut, no word unknown for one
               unknown character
    bytes      byte-level BPE: no text is unknown to it, and decoding gives the very text, in NFC

`wordpiece` and `bytes` split text by ranges of code points that are written into tokenizer.json, not by Unicode
properties: libraries differ in their Unicode version, and ids must not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from electra.corpus.scripts import SPACELESS, ranges

Kind = Literal["bert", "wordpiece", "bytes"]

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIALS = (PAD, UNK, CLS, SEP, MASK)
MAX_WORD_CHARS = 100
"""BERT's limit, as in `transformers`: a longer word is unknown to kind `bert` and cut by kind `wordpiece`."""
MAX_RUN_CHARS = 48
"""Longest run of a script without spaces that byte-level BPE sees at once: most are shorter, and its time grows."""

Merges = Sequence[tuple[str, str]]

_CONTROL = r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\x{feff}\x{fffe}\x{ffff}]"
_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SYMBOLS = (
    r"!-/:-@\[-`{-~"
    + "\xa1-\xa9\xab-\xb4\xb6-\xb9\xbb-\xbf\xd7\xf7\u2010-\u2027\u2030-\u205e\u20a0-\u20cf\u2190-\u2bff"
    "\u2e00-\u2e7f\u3001-\u3004\u3008-\u3030\u303d-\u303f\u30fb\ufe10-\ufe19\ufe30-\ufe6f\uff01-\uff0f\uff1a-\uff20"
    "\uff3b-\uff40\uff5b-\uff65\U0001f000-\U0001faff"
)
_KANA_LENGTH_MARK = "\u30fc"


def build(
    kind: Kind, vocab: Sequence[str], merges: Merges, *, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """The object for a vocabulary; `merges` are those of kind `bytes`."""
    ids = {token: number for number, token in enumerate(vocab)}
    backend = tokenizers.Tokenizer(
        models.BPE(ids, list(merges))
        if kind == "bytes"
        else models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=MAX_WORD_CHARS)
    )
    backend.normalizer = normalizer(kind, lowercase=lowercase, strip_accents=strip_accents)
    backend.pre_tokenizer = byte_pieces() if kind == "bytes" else words(kind, vocab)
    template = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
    )
    if kind == "bytes":
        trimmed = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
        backend.post_processor = processors.Sequence([trimmed, template])
        backend.decoder = decoders.ByteLevel()
    else:
        backend.post_processor = template
        backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(list(SPECIALS))
    backend.encode_special_tokens = True  # a document that says [MASK] does not get one
    return backend


def normalizer(kind: Kind, *, lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """What happens to text before it is split."""
    bert = kind == "bert"
    folded = normalizers.BertNormalizer(
        clean_text=bert, handle_chinese_chars=kind != "bytes", strip_accents=strip_accents, lowercase=lowercase
    )
    if bert:
        return folded
    steps: list[normalizers.Normalizer] = [normalizers.NFC()]
    if kind == "wordpiece":
        steps.append(normalizers.Replace(Regex(_CONTROL), ""))
    if kind == "wordpiece" or lowercase or strip_accents:
        steps.append(folded)
    if strip_accents:
        steps.append(normalizers.NFC())  # removing accents takes every syllable of Hangul apart
    return normalizers.Sequence(steps)


def words(kind: Kind, vocab: Iterable[str]) -> pre_tokenizers.PreTokenizer:
    """Text as words and punctuation.

    Kind `wordpiece` also cuts words that are too long, and takes each character that cannot stand inside a word as a
    word of its own: a rare one needs one entry, not two, and an unknown one does not make its whole word unknown.
    """
    bert = pre_tokenizers.BertPreTokenizer()
    if kind == "bert":
        return bert
    return pre_tokenizers.Sequence([bert, pre_tokenizers.Split(Regex(word_pattern(inside(vocab))), "isolated")])


def inside(vocab: Iterable[str]) -> set[str]:
    """The characters that can stand inside a word."""
    return {entry[2] for entry in vocab if len(entry) == 3 and entry.startswith("##")}


def word_pattern(chars: Iterable[str]) -> str:
    """What a word is cut into, given the characters that can stand inside one; for `re` and for `tokenizers`."""
    runs: list[list[int]] = []
    for code in sorted(map(ord, chars)):
        if runs and code == runs[-1][1] + 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    known = "".join(f"{_escaped(first)}-{_escaped(last)}" for first, last in runs)
    return f"[{known}]{{1,{MAX_WORD_CHARS}}}|[^{known}]" if known else "."


def _escaped(code: int) -> str:
    return "\\" + chr(code) if chr(code) in r"\]^-[&~|" else chr(code)


def byte_pieces() -> pre_tokenizers.PreTokenizer:
    """Text as the pieces that byte-level BPE never merges across, in bytes."""
    split = pre_tokenizers.Split(Regex(PIECE), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _piece_pattern() -> str:
    """A space belongs to what follows it. Runs of one script, words, up to three digits, symbols; each bounded."""
    kana = ("Hiragana", "Katakana")
    scripts = [
        "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges(name))
        + (_KANA_LENGTH_MARK if name in kana else "")
        for name in sorted(SPACELESS)
    ]
    pieces = [f" ?[{script}]{{1,{MAX_RUN_CHARS}}}" for script in scripts]
    pieces += [" ?[0-9]{1,3}", f" ?[{_SYMBOLS}]{{1,16}}"]
    pieces += [f" ?[^{''.join(scripts)}0-9{_SYMBOLS}{_SPACE}]{{1,{MAX_WORD_CHARS}}}", f"[{_SPACE}]"]
    return "|".join(pieces)


PIECE = _piece_pattern()
split_pieces = re.compile(PIECE).findall
"""The pieces of a text, as `byte_pieces` makes them."""


def _byte_characters() -> dict[int, str]:
    """The character that stands for each byte in the entries of byte-level BPE: printable ones for themselves."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + number) for number, byte in enumerate(others)}


BYTE_CHARACTERS = _byte_characters()
_BYTES = {char: byte for byte, char in BYTE_CHARACTERS.items()}


def as_byte_characters(text: str) -> str:
    """The text as byte-level BPE sees it, a character a byte."""
    return text.encode().decode("latin-1").translate(BYTE_CHARACTERS)


def entry_text(entry: str) -> str:
    """The text of a byte-level entry; bytes of a part of a character are escaped."""
    return bytes(_BYTES[char] for char in entry).decode("utf-8", "backslashreplace")
