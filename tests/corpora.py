"""Small made-up corpora for tests, the same every time."""

from __future__ import annotations

import hashlib
from pathlib import Path

from electra.tokenizer.backends import SPECIALS

WORDS = (
    "the a river mountain house winter summer people king queen city small large old young walked saw found lost "
    "in on under over between and but because when where often never always light dark water stone tree bird café "
    "naïve über 北京 東京 música день ночь world history science music number seven eight nine letters book page"
).split()


def pick(*address: object) -> int:
    """A number that depends on nothing but the address."""
    return int.from_bytes(hashlib.blake2b(repr(address).encode(), digest_size=8).digest(), "little")


def sentence(*address: object) -> str:
    words = [WORDS[pick(*address, at) % len(WORDS)] for at in range(4 + pick(*address) % 9)]
    return " ".join(words).capitalize() + "."


def document(*address: object) -> list[str]:
    """Paragraphs of a few sentences."""
    return [
        " ".join(sentence(*address, line, at) for at in range(1 + pick(*address, line, "n") % 4))
        for line in range(1 + pick(*address, "lines") % 5)
    ]


def documents(count: int, seed: object = 0) -> list[list[str]]:
    return [document(seed, number) for number in range(count)]


def text(some: list[list[str]]) -> str:
    return "\n\n".join("\n".join(lines) for lines in some) + "\n"


def write_corpus(path: Path, count: int, seed: object = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(documents(count, seed)), encoding="utf-8")
    return path


def write_vocab(path: Path, *, leave_out: str = "") -> Path:
    """A BERT-like vocabulary that covers the made-up words."""
    letters = sorted(set("".join(WORDS).lower()) | set("."))
    entries = [*SPECIALS, *letters, *("##" + letter for letter in letters), *(w for w in WORDS if w.isascii())]
    kept = [entry for entry in dict.fromkeys(entries) if entry != leave_out]
    path.write_text("".join(entry + "\n" for entry in kept), encoding="utf-8")
    return path


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below the folder."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
