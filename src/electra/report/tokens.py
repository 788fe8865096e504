"""Samples as tokens to colour: the original, the generator's token, the discriminator's probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from electra.metrics.rtd import auc
from electra.report.reading import Sample

_CLOSING = frozenset(".,;:!?)]}%")
_OPENING = frozenset("([{")
_HIDDEN = {"[CLS]": "", "[SEP]": "¶"}
_MARKED = frozenset([*_HIDDEN, "[MASK]", "[UNK]", "[PAD]"])
_SPACE = "␣"


@dataclass(frozen=True, kw_only=True, slots=True)
class PageToken:
    """A token on the page."""

    text: str
    glued: bool
    """Stands without a space after the token before it."""
    special: bool
    chosen: bool
    """The generator was asked for this token."""
    changed: bool
    """The generator's answer was not the original."""
    before: str
    """The original token."""
    probability: float
    """The discriminator's probability that it was replaced."""

    @property
    def tooltip(self) -> str:
        """The sentence that a pointer over the token shows."""
        fact = f"replaced: was “{self.before}”" if self.changed else "original"
        guess = " (the generator guessed it)" if self.chosen and not self.changed else ""
        return f"{fact}{guess}; the discriminator says {self.probability:.0%} replaced"


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How the discriminator did on one sample."""

    changed: int
    """Tokens that really were replaced."""
    found: int
    """How many of those are among the same number of tokens that it suspects most."""
    luck: float
    """How many a blind pick of that many tokens would find."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guesses:
    """What the generator put in one place at different steps."""

    original: str
    answers: list[tuple[str, bool]]
    """Token and whether it is the original one."""


def page_tokens(sample: Sample, tokens: Sequence[str] | None = None) -> list[PageToken]:
    """`tokens` with what is known of each; by default the tokens of the corrupted sequence."""
    tokens = (sample.replaced or sample.masked) if tokens is None else tokens
    probabilities = sample.probabilities or [0.0] * len(tokens)
    made: list[PageToken] = []
    for i, token in enumerate(tokens):
        before = tokens[i - 1] if i else ""
        made.append(
            PageToken(
                text=_HIDDEN.get(token, _bare(token, sample)),
                glued=i == 0 or _glued(token, before, sample),
                special=token in _HIDDEN,
                chosen=_chosen(sample, i),
                changed=bool(sample.replaced) and sample.replaced[i] != sample.original[i],
                before=_bare(sample.original[i], sample),
                probability=probabilities[i],
            )
        )
    return made


def score(sample: Sample) -> Score:
    tokens = page_tokens(sample)
    changed = sum(token.changed for token in tokens)
    suspects = sorted(tokens, key=lambda token: -token.probability)[:changed]
    return Score(
        changed=changed, found=sum(token.changed for token in suspects), luck=changed * changed / max(1, len(tokens))
    )


def milestones(samples: Sequence[Sample], *, most: int = 4) -> list[Sample]:
    """Samples of the first sequence, first and last step included, spread evenly; one a step."""
    same = {sample.step: sample for sample in samples if sample.original == samples[0].original}
    steps = sorted(same)
    if len(steps) <= most:
        return [same[step] for step in steps]
    return [same[steps[round(i * (len(steps) - 1) / (most - 1))]] for i in range(most)]


def by_detection(samples: Sequence[Sample]) -> list[tuple[float, Sample]]:
    """The last step's samples that the generator changed, each with its AUC, the best-detected first."""
    last = max((sample.step for sample in samples), default=0)
    found = []
    for sample in samples:
        replaced = [a != b for a, b in zip(sample.original, sample.replaced, strict=False)]
        if sample.step == last and sample.probabilities and any(replaced) and not all(replaced):
            found.append((auc(np.array(sample.probabilities), np.array(replaced)), sample))
    return sorted(found, key=lambda pair: -pair[0])


def guesses(samples: Sequence[Sample], *, most: int = 8) -> list[Guesses]:
    """The generator's answers over time for the places that it was asked for every time."""
    if not samples or not all(sample.replaced for sample in samples):
        return []
    places = [i for i in range(len(samples[0].original)) if all(_chosen(sample, i) for sample in samples)]
    return [
        Guesses(
            original=_bare(samples[0].original[i], samples[0]),
            answers=[(_bare(s.replaced[i], s), s.replaced[i] == s.original[i]) for s in samples],
        )
        for i in places[:most]
    ]


def _chosen(sample: Sample, i: int) -> bool:
    asked = sample.masked[i] != sample.original[i]
    return asked or bool(sample.replaced) and sample.replaced[i] != sample.original[i]


def _bare(token: str, sample: Sample) -> str:
    if sample.spaced:
        return token.strip(" ") or _SPACE
    return token[2:] if _continues(token) else token


def _glued(token: str, before: str, sample: Sample) -> bool:
    if sample.spaced:
        return not token.startswith(" ") and token not in _MARKED
    return _continues(token) or token in _CLOSING or before in _OPENING


def _continues(token: str) -> bool:
    return token.startswith("##") and len(token) > 2
