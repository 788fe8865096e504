"""The characters of a WordPiece vocabulary: which get an entry, and which may stand inside words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import pre_tokenizers

from electra.tokenizer.backends import normalizer

COVERAGE = 0.9999
"""Share of a text's characters that may stand inside words. Each of the rarer rest is a word of its own, which takes
one entry and not two: in 200 MB of the English Wikipedia these are 3,900 of 4,300 different characters."""


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Characters as the model sees them, the most frequent first."""

    counts: dict[str, int]
    common: frozenset[str]
    """Those that are frequent enough to stand inside words, and are no punctuation."""

    @classmethod
    def of(cls, characters: Mapping[str, int], *, lowercase: bool, strip_accents: bool) -> Alphabet:
        """The alphabet of a text, given how often each of its characters occurs."""
        normalize = normalizer("wordpiece", lowercase=lowercase, strip_accents=strip_accents).normalize_str
        found: Counter[str] = Counter()
        for char, count in characters.items():
            for one in normalize(char):
                if not one.isspace():
                    found[one] += count
        counts = {char: found[char] for char in sorted(found, key=lambda char: (-found[char], char))}
        pre_tokenize = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
        enough, covered = found.total() * COVERAGE, 0
        common = set()
        for char, count in counts.items():
            if covered >= enough:
                break
            covered += count
            if len(pre_tokenize(normalize(f"a{char}a"))) == 1:
                common.add(char)
        return cls(counts, frozenset(common))

    @property
    def entries(self) -> int:
        """What all characters take of a vocabulary."""
        return len(self.counts) + len(self.common)

    def within(self, limit: int) -> tuple[set[str], set[str]]:
        """The characters with entries, at most `limit` of those, and the part of them that may stand inside words.

        Where there are too many, the rarest first lose their place inside words, then their entries.
        """
        known = list(self.counts)[:limit]
        inside = [char for char in known if char in self.common][: limit - len(known)]
        return set(known), set(inside)
