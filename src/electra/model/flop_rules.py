"""Two rules to count the FLOPs of a forward pass, a token: as matrix products, and by the paper's script."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from electra.model.encoder import Shape

DROPOUT, NORM, GELU, SOFTMAX, ROTATION = 4, 5, 8, 5, 3  # operations an element, in the paper's count


class FlopRules(Protocol):
    """FLOPs a token of each part of a forward pass."""

    @property
    def share(self) -> float:
        """Of the tokens, those at masked positions."""

    @property
    def paper(self) -> bool:
        """Whether these are the paper's rules."""

    def encoder(self, shape: Shape, towers: int = 1) -> float:
        """Layers over embeddings; several towers read the same ones."""

    def vocabulary(self, inputs: int, embedding: int) -> float:
        """An MLM head's prediction at one position."""

    def detection(self, width: int) -> float:
        """The replaced-token head."""

    def score(self, width: int) -> float:
        """One number from one state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixProducts:
    """Matrix products as they are done."""

    length: int
    vocab: int
    share: float
    paper = False

    def encoder(self, shape: Shape, towers: int = 1) -> float:
        h = shape.width
        layer = 2 * h * 4 * h + 2 * 2 * h * shape.ffn + 2 * 2 * self.length * h
        return towers * (shape.layers * layer + (2 * shape.embedding * h if shape.embedding != h else 0))

    def vocabulary(self, inputs: int, embedding: int) -> float:
        return 2 * inputs * embedding + 2 * embedding * self.vocab

    def detection(self, width: int) -> float:
        return 2 * width * (width + 1)

    def score(self, width: int) -> float:
        return 2 * width


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperScript:
    """The rules of the paper's published script."""

    length: int
    vocab: int
    share: float = 0.15625  # whatever the masking rate, also for the large models
    paper = True

    def encoder(self, shape: Shape, towers: int = 1) -> float:
        h, e, ffn = shape.width, shape.embedding, shape.ffn
        products = 3 * 2 * h * h + 2 * 2 * self.length * h + 2 * h * h + 2 * 2 * h * ffn
        probabilities = (SOFTMAX + DROPOUT + 1) * self.length * shape.heads  # 1: the scaling
        # The script counts the attention norm as 5 operations, not 5 an element; its figures are the published ones.
        attention = 3 * h + (1 + DROPOUT + 1) * h + NORM
        feed_forward = (GELU + 1) * ffn + (1 + DROPOUT + 1 + NORM) * h
        positions = 0 if shape.rotary else 2 * e * self.length + e
        lookup = 2 * e * self.vocab + positions + 2 * e * 2 + (1 + NORM + DROPOUT) * e
        attention += ROTATION * 2 * h if shape.rotary else 0  # of queries and keys
        project = 2 * h * e + h if e != h else 0
        return lookup + towers * (shape.layers * (products + probabilities + attention + feed_forward) + project)

    def vocabulary(self, inputs: int, embedding: int) -> float:
        e, vocab = embedding, self.vocab
        return 2 * e * vocab + 2 * inputs * e + (1 + GELU + NORM) * e + (SOFTMAX + 2) * vocab

    def detection(self, width: int) -> float:
        return 2 * width * width + (1 + GELU + 2) * width

    def score(self, width: int) -> float:
        return 2 * width
