"""What stands on an encoder: the heads of pre-training (masked token, replaced token) and of fine-tuning.

Shapes: B sequences, L length, D width, E embedding size, M predicted positions, V vocabulary, C outputs, K beam.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.kernels import USABLE
from electra.model.activation import gelu
from electra.model.dropout import dropout, site_keys
from electra.model.layers import NORM_EPS, FullLinear, Norm, gelu_of

HEAD_SITE = 3_000_003  # far from the encoder's sites, so that the head's dropout is its own
FORBIDDEN = -1000.0  # added to the score of a token that no answer may start or end at


class MaskedHead(nn.Module):
    """Logits over the vocabulary, through the token table that the embeddings use.

    On a GPU, loss and sample come from a fused kernel, in bf16 what stands before them too; `fused` false leaves it
    plain.
    """

    fused: bool = USABLE

    def __init__(self, width: int, embedding: int, vocab: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, embedding)
        self.norm = Norm(embedding)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, hidden_MD: Tensor, table_VE: Tensor, bias_V: Tensor) -> Tensor:
        x_ME = self.states(hidden_MD)
        return F.linear(x_ME, table_VE.to(x_ME.dtype), bias_V.to(x_ME.dtype))

    def states(self, hidden_MD: Tensor) -> Tensor:
        """What is compared with every entry of the token table."""
        if self.fused and hidden_MD.is_cuda and hidden_MD.dtype == torch.bfloat16:
            return self._run_fused(hidden_MD)
        x_ME: Tensor = self.norm(gelu_of(self.dense, hidden_MD))
        return x_ME

    def _run_fused(self, hidden_MD: Tensor) -> Tensor:
        from electra.kernels.states import states

        weights = (self.dense.weight, self.dense.bias, self.norm.weight, self.norm.bias)
        x_ME: Tensor = states(hidden_MD, *weights, eps=NORM_EPS)
        return x_ME


class DetectionHead(nn.Module):
    """One logit a token: how much it looks replaced; on a GPU in bf16 by fused kernels, unless `fused` is false."""

    fused: bool = USABLE

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        if self.fused and hidden_BLD.is_cuda and hidden_BLD.dtype == torch.bfloat16:
            return self._run_fused(hidden_BLD)
        scores_BL: Tensor = self.score(gelu_of(self.dense, hidden_BLD)).squeeze(-1)
        return scores_BL.float()

    def _run_fused(self, hidden_BLD: Tensor) -> Tensor:
        from electra.kernels.score import score

        scores_BL: Tensor = score(hidden_BLD, self.dense.weight, self.dense.bias, self.score.weight, self.score.bias)
        return scores_BL


class CopyHead(nn.Module):
    """Logits over the vocabulary for every token, and one for keeping the token that is there."""

    def __init__(self, width: int, embedding: int, vocab: int) -> None:
        super().__init__()
        self.masked = MaskedHead(width, embedding, vocab)
        self.copy = nn.Linear(width, 1)

    def copies(self, hidden_BLD: Tensor) -> Tensor:
        """(B, L) logits of keeping the token."""
        scores_BL: Tensor = self.copy(hidden_BLD).squeeze(-1)
        return scores_BL.float()


class OutputHead(nn.Module):
    """Dropout and one linear layer: C numbers for a text from its first token, or for every token."""

    def __init__(self, width: int, outputs: int, *, rate: float, first: bool) -> None:
        super().__init__()
        self.rate, self.first = rate, first
        self.out = FullLinear(width, outputs)

    def forward(self, hidden_BLD: Tensor, keys_B: Tensor | None = None) -> Tensor:
        """(B, C), or (B, L, C) where every token is asked."""
        x = hidden_BLD[:, 0] if self.first else hidden_BLD
        scores: Tensor = self.out(dropout(x, self.rate, site_keys(keys_B, HEAD_SITE)))
        return scores


class SpanHead(nn.Module):
    """Where an answer starts, where it ends given its start, and whether there is none (XLNet's joint head)."""

    INNER = 512

    def __init__(self, width: int) -> None:
        super().__init__()
        self.start = FullLinear(width, 1)
        self.end_inner = FullLinear(2 * width, self.INNER)
        self.end = FullLinear(self.INNER, 1)
        self.null_inner = FullLinear(2 * width, self.INNER)
        self.null = FullLinear(self.INNER, 1)

    def starts(self, hidden_BLD: Tensor, allowed_BL: Tensor) -> Tensor:
        """(B, L) scores of the start tokens."""
        scores_BL: Tensor = self.start(hidden_BLD).squeeze(-1)
        return scores_BL + FORBIDDEN * (~allowed_BL).float()

    def ends(self, hidden_BLD: Tensor, allowed_BL: Tensor, start_BK: Tensor) -> Tensor:
        """(B, K, L) scores of the end tokens for each of K starts."""
        hidden_BLD = hidden_BLD.float()
        width = hidden_BLD.shape[-1]
        # Two products and a sum, instead of the pairs laid side by side: K times less to multiply.
        of_start, of_end = self.end_inner.weight[:, :width], self.end_inner.weight[:, width:]
        begun_BKD = hidden_BLD.gather(1, start_BK[..., None].expand(-1, -1, width))
        inner_BKLI = (
            F.linear(begun_BKD, of_start)[:, :, None] + F.linear(hidden_BLD, of_end, self.end_inner.bias)[:, None]
        )
        scores_BKL: Tensor = self.end(gelu(inner_BKLI)).squeeze(-1)
        return scores_BKL + FORBIDDEN * (~allowed_BL).float()[:, None]

    def nulls(self, hidden_BLD: Tensor, start_scores_BL: Tensor) -> Tensor:
        """(B,) scores that the question has no answer here."""
        hidden_BLD = hidden_BLD.float()
        meant_BD = (start_scores_BL.softmax(1)[..., None] * hidden_BLD).sum(1)
        inner_BI = gelu(self.null_inner(torch.cat((hidden_BLD[:, 0], meant_BD), dim=1)))
        scores_B: Tensor = self.null(inner_BI).squeeze(-1)
        return scores_B
