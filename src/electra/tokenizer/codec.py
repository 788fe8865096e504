"""A tokenizer as a value: text to ids and back, saved so that `transformers` loads the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from electra.corpus.scripts import SPACELESS, script
from electra.errors import DataError
from electra.fsio import read_json, read_object, write_atomic, write_json
from electra.jsontext import parse_json
from electra.records import read_record
from electra.tokenizer.backends import MAX_WORD_CHARS, SPECIALS, Kind, Merges, build, entry_text
from electra.tokenizer.vocabulary import check_vocab, made_for, read_vocab

VOCAB_FILE, TOKENIZER_FILE, CONFIG_FILE = "vocab.txt", "tokenizer.json", "tokenizer_config.json"


class Tokenizer:
    """Text to token ids. Special tokens never come out of text: `[MASK]` in a text is ordinary tokens.

    `backends` says what the kinds are. By default the vocabulary is one of BERT's: lower case, no accents.
    """

    def __init__(
        self,
        vocab: Sequence[str],
        *,
        kind: Kind = "bert",
        merges: Merges = (),
        lowercase: bool = True,
        strip_accents: bool | None = None,
    ) -> None:
        self.kind = kind
        self.vocab = tuple(vocab)
        self.merges = tuple(merges)
        self.lowercase = lowercase
        self.strip_accents = lowercase if strip_accents is None else strip_accents
        ids = {token: number for number, token in enumerate(self.vocab)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIALS)
        self.backend = build(kind, self.vocab, self.merges, lowercase=self.lowercase, strip_accents=self.strip_accents)

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    @property
    def special_ids(self) -> tuple[int, int, int, int, int]:
        """Ids of [PAD], [UNK], [CLS], [SEP], [MASK]."""
        return self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id

    @property
    def options(self) -> dict[str, Any]:
        folded = {"lowercase": self.lowercase, "strip_accents": self.strip_accents}
        return folded | ({"max_word_chars": MAX_WORD_CHARS} if self.kind == "bert" else {})

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over vocabulary and options: equal exactly when every text gets equal ids."""
        identity: dict[str, Any] = {"vocab": self.vocab, **self.options}
        if self.kind != "bert":
            identity |= {"kind": self.kind, "merges": self.merges, "steps": self.steps}
        return hashlib.sha256(json.dumps(identity, ensure_ascii=True, sort_keys=True).encode()).hexdigest()

    @property
    def steps(self) -> list[Any]:
        """What is done to text before the model sees it, as tokenizer.json has it."""
        return _steps(parse_json(self.backend.to_str(), where=TOKENIZER_FILE))

    @property
    def tokens_hold_spaces(self) -> bool:
        """Whether a space is part of the token behind it; otherwise `##` marks tokens with none in front."""
        return self.kind == "bytes"

    def encode(self, text: str) -> list[int]:
        """Ids of the text's tokens, no special ones added."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids, and for each the start and end of its characters in the text.

        Byte-level tokens that share a character have its start and end alike; a space in front is not part of a span.
        """
        encoded = self.backend.encode(text, add_special_tokens=False)
        return list(encoded.ids), list(encoded.offsets)

    def encode_all_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """`encode_with_offsets` of each text, on all cores."""
        if len(texts) == 1:  # without the threads of a batch
            return [self.encode_with_offsets(texts[0])]
        encoded = self.backend.encode_batch(list(texts), add_special_tokens=False)
        return [(list(one.ids), list(one.offsets)) for one in encoded]

    def in_sentence(self, words: Sequence[str]) -> list[str]:
        """The words as in running text: where tokens hold spaces, with the one that their script writes in front."""
        if not self.tokens_hold_spaces:
            return list(words)
        spaced = list(words[:1])
        for before, word in zip(words, words[1:], strict=False):
            glued = not before or not word or script(before[-1]) in SPACELESS or script(word[0]) in SPACELESS
            spaced.append(word if glued else " " + word)
        return spaced

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text of the ids, special tokens left out."""
        return str(self.backend.decode([int(number) for number in ids], skip_special_tokens=True))

    def token(self, number: int) -> str:
        """The vocabulary entry with this id; of a byte-level one its text."""
        entry = self.vocab[number]
        return entry_text(entry) if self.kind == "bytes" and entry not in SPECIALS else entry

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, and BERT's vocab.txt where the kind is `bert`."""
        if self.kind == "bert":
            write_atomic(folder / VOCAB_FILE, "".join(token + "\n" for token in self.vocab).encode())
            split: dict[str, Any] = {"tokenize_chinese_chars": True}
        else:  # BertTokenizer would split text in BERT's way whatever tokenizer.json says
            split = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        config = {
            "tokenizer_class": "BertTokenizer" if self.kind == "bert" else "PreTrainedTokenizerFast",
            "do_lower_case": self.lowercase,
            "strip_accents": self.strip_accents,
            **split,
            "model_max_length": 512,
            **{f"{name}_token": token for name, token in zip(_ROLES, SPECIALS, strict=True)},
        }
        write_atomic(folder / TOKENIZER_FILE, (self.backend.to_str(pretty=False) + "\n").encode())
        write_json(folder / CONFIG_FILE, config)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """The tokenizer of a folder of ours, or of any `transformers` folder with a BERT-like WordPiece."""
        where = folder / CONFIG_FILE
        settings = read_record(_Settings, read_json(where), where=where) if where.exists() else _Settings()
        if (folder / VOCAB_FILE).exists():
            vocab = read_vocab(folder / VOCAB_FILE)
            return cls(vocab, lowercase=bool(settings.do_lower_case), strip_accents=settings.strip_accents)
        path = folder / TOKENIZER_FILE
        if not path.exists():
            raise DataError(folder, f"no tokenizer here: neither {VOCAB_FILE} nor {TOKENIZER_FILE}")
        return _from_tokenizer_json(path)

    @classmethod
    def read(cls, path: Path) -> Tokenizer:
        """The tokenizer that a user names: its folder, that of a run or of data, tokenizer.json, or a BERT vocab.txt.

        tokenizer_config.json beside a vocab.txt says how it folds text; without one its entries do.
        """
        if path.is_dir():
            inner = path / "tokenizer"
            return cls.load(inner if inner.is_dir() else path)
        if path.suffix == ".json":
            return _from_tokenizer_json(path)
        if path.name == VOCAB_FILE and (path.parent / CONFIG_FILE).exists():
            return cls.load(path.parent)
        vocab = read_vocab(path)
        lowercase, strip_accents = made_for(vocab)
        return cls(vocab, lowercase=lowercase, strip_accents=strip_accents)


_ROLES = ("pad", "unk", "cls", "sep", "mask")


def _from_tokenizer_json(path: Path) -> Tokenizer:
    described = read_object(path)
    try:
        kind, vocab, merges, folded = _parts(described)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(path, "is neither a BERT-like WordPiece tokenizer nor one of Electra's") from error
    if [described["model"]["vocab"][token] for token in vocab] != list(range(len(vocab))):
        raise DataError(path, "ids of the vocabulary are not 0, 1, 2 ...")
    check_vocab(vocab, where=path)
    strip_accents = folded.get("strip_accents")
    tokenizer = Tokenizer(
        vocab,
        kind=kind,
        merges=merges,
        lowercase=bool(folded.get("lowercase", True)),
        strip_accents=None if strip_accents is None else bool(strip_accents),
    )
    if kind != "bert" and _steps(described) != tokenizer.steps:
        raise DataError(path, "splits text in a way that this Electra does not know", fix="update Electra")
    return tokenizer


_KINDS: dict[str, Kind] = {"WordPiece": "wordpiece", "BPE": "bytes"}


def _parts(described: dict[str, Any]) -> tuple[Kind, list[str], list[tuple[str, str]], dict[str, Any]]:
    """Kind, vocabulary in the order of ids, merges, and how text is folded; KeyError and kin where there are none."""
    model, normalizer = described["model"], described["normalizer"]
    vocab = sorted(model["vocab"], key=model["vocab"].__getitem__)
    if model["type"] == "WordPiece" and normalizer["type"] == "BertNormalizer":
        return "bert", vocab, [], normalizer
    kind = _KINDS[model["type"]]
    merges = [(str(left), str(right)) for left, right in model.get("merges", [])]
    if kind == "bytes":
        for entry in set(vocab) - set(SPECIALS):
            entry_text(entry)
        if not set(vocab).issuperset(part for left, right in merges for part in (left, right, left + right)):
            raise ValueError("a merge has no entry")
    steps = [normalizer] if normalizer["type"] != "Sequence" else normalizer["normalizers"]
    bert = [step for step in steps if step["type"] == "BertNormalizer"]
    return kind, vocab, merges, bert[0] if bert else {"lowercase": False, "strip_accents": False}


def _steps(described: dict[str, Any]) -> list[Any]:
    """What is done to text before the model sees it."""
    return [described.get("normalizer"), described.get("pre_tokenizer")]


@dataclass(frozen=True, slots=True)
class _Settings:
    """The part of tokenizer_config.json that is read."""

    do_lower_case: bool | None = True
    strip_accents: bool | None = None
