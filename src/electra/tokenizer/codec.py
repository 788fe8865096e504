"""A WordPiece tokenizer as a value: text to ids and back, saved so that `transformers` loads the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from electra.errors import DataError
from electra.fsio import read_json, write_atomic, write_json

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIALS = (PAD, UNK, CLS, SEP, MASK)
MAX_WORD_CHARS = 100  # as transformers; the released ELECTRA code has 200, which only ever matters to junk

VOCAB_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"


class Tokenizer:
    """Text to token ids. Special tokens never come out of text: `[MASK]` in a text is three ordinary tokens."""

    def __init__(self, vocab: Sequence[str], *, lowercase: bool = True, strip_accents: bool | None = None) -> None:
        self.vocab = tuple(vocab)
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        ids = {token: number for number, token in enumerate(self.vocab)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIALS)
        self._backend = _backend(ids, lowercase=self.lowercase, strip_accents=self.strip_accents)

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    @property
    def special_ids(self) -> tuple[int, int, int, int, int]:
        """Ids of [PAD], [UNK], [CLS], [SEP], [MASK]."""
        return self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id

    @property
    def options(self) -> dict[str, Any]:
        return {"lowercase": self.lowercase, "strip_accents": self.strip_accents, "max_word_chars": MAX_WORD_CHARS}

    @property
    def fingerprint(self) -> str:
        """sha256 over vocabulary and options: equal exactly when every text gets equal ids."""
        identity = {"vocab": self.vocab, **self.options}
        return hashlib.sha256(json.dumps(identity, ensure_ascii=True, sort_keys=True).encode()).hexdigest()

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The `tokenizers` object that does the work."""
        return self._backend

    def encode(self, text: str) -> list[int]:
        """Ids of the text's tokens, no special ones added."""
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the start and end of its characters in the text."""
        encoded = self._backend.encode(text, add_special_tokens=False)
        return list(encoded.ids), list(encoded.offsets)

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of the ids, special tokens left out."""
        return str(self._backend.decode([int(number) for number in ids], skip_special_tokens=True))

    def token(self, number: int) -> str:
        """The vocabulary entry with this id."""
        return self.vocab[number]

    def save(self, folder: Path) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json."""
        write_atomic(folder / VOCAB_FILE, "".join(token + "\n" for token in self.vocab).encode())
        write_atomic(folder / TOKENIZER_FILE, (self._backend.to_str(pretty=False) + "\n").encode())
        config = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            "tokenize_chinese_chars": True,
            "model_max_length": 512,
            **{f"{name}_token": token for name, token in zip(_ROLES, SPECIALS, strict=True)},
        }
        write_json(folder / CONFIG_FILE, config)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a folder of ours, or of any `transformers` folder with a BERT-like WordPiece."""
        config = _json(folder / CONFIG_FILE) if (folder / CONFIG_FILE).exists() else {}
        if (folder / VOCAB_FILE).exists():
            vocab = read_vocab(folder / VOCAB_FILE)
            return cls(
                vocab, lowercase=bool(config.get("do_lower_case", True)), strip_accents=config.get("strip_accents")
            )
        path = folder / TOKENIZER_FILE
        if not path.exists():
            raise DataError(folder, f"no tokenizer here: neither {VOCAB_FILE} nor {TOKENIZER_FILE}")
        return _from_tokenizer_json(path)


_ROLES = ("pad", "unk", "cls", "sep", "mask")


def _backend(ids: dict[str, int], *, lowercase: bool, strip_accents: bool) -> tokenizers.Tokenizer:
    model = models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=MAX_WORD_CHARS)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = bert_normalizer(lowercase=lowercase, strip_accents=strip_accents)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:1 {SEP}:1",
        special_tokens=[(CLS, ids[CLS]), (SEP, ids[SEP])],
    )
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.add_special_tokens(list(SPECIALS))
    backend.encode_special_tokens = True  # a document that says [MASK] does not get one
    return backend


def bert_normalizer(*, lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )


def read_vocab(path: Path) -> list[str]:
    """The entries of a BERT vocab.txt, one a line; a file that cannot be a vocabulary is a DataError."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(path, f"byte {error.start} is not valid UTF-8") from error
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    vocab = [line.removesuffix("\r") for line in text.split("\n")]
    if vocab and not vocab[-1]:
        vocab.pop()
    check_vocab(vocab, where=path)
    return vocab


def check_vocab(vocab: Sequence[str], *, where: object) -> None:
    seen: dict[str, int] = {}
    for line, token in enumerate(vocab, 1):
        if not token:
            raise DataError(where, f"line {line} is empty", fix="one entry a line")
        if token in seen:
            raise DataError(where, f"'{token}' stands twice, in lines {seen[token]} and {line}")
        seen[token] = line
    missing = [token for token in SPECIALS if token not in seen]
    if missing:
        raise DataError(where, f"the vocabulary lacks {', '.join(missing)}", fix=f"it needs {' '.join(SPECIALS)}")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(path, f"cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise DataError(path, "is not a JSON object")
    return value


def _from_tokenizer_json(path: Path) -> Tokenizer:
    described = _json(path)
    model, normalizer = described.get("model") or {}, described.get("normalizer") or {}
    if model.get("type") != "WordPiece" or normalizer.get("type") != "BertNormalizer":
        raise DataError(path, "is not a BERT-like WordPiece tokenizer")
    vocab = sorted(model.get("vocab") or {}, key=model["vocab"].__getitem__)
    if [model["vocab"][token] for token in vocab] != list(range(len(vocab))):
        raise DataError(path, "ids of the vocabulary are not 0, 1, 2 ...")
    check_vocab(vocab, where=path)
    return Tokenizer(
        vocab, lowercase=bool(normalizer.get("lowercase", True)), strip_accents=normalizer.get("strip_accents")
    )
