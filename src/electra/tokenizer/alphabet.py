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
ENTRIES = 1_000
"""Characters that have an entry however rare they are: more than one language needs, Chinese and Japanese aside."""
RARE_SHARE = 2.5e-5
"""Beyond those the rarest have none, this share of all characters together. In 620 MB of English, with what Wikipedia
quotes of other scripts, these are 4,800 of 5,900 different characters, none of which occurs twenty times."""


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
    def _known(self) -> int:
        """How many characters have an entry in a vocabulary that is large enough."""
        rest, left = sum(self.counts.values()) * RARE_SHARE, len(self.counts)
        for count in reversed(self.counts.values()):
            rest -= count
            if rest <= 0:
                break
            left -= 1
        return max(left, min(ENTRIES, len(self.counts)))

    @property
    def entries(self) -> int:
        """What the characters take of a vocabulary."""
        return self._known + len(self.common)

    def within(self, limit: int) -> tuple[set[str], set[str]]:
        """The characters with entries, at most `limit` of those, and the part of them that may stand inside words.

        Where there are too many, the rarest first lose their place inside words, then their entries. Of the
        characters that are too rare to be learned, few have entries.
        """
        known = list(self.counts)[: min(limit, self._known)]
        inside = [char for char in known if char in self.common][: limit - len(known)]
        return set(known), set(inside)
