"""What stands on an encoder: the heads of pre-training (masked token, replaced token) and of fine-tuning.

Shapes: B sequences, L length, D width, E embedding size, M predicted positions, V vocabulary, C outputs, K beam.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.layers import FullLinear, Norm, call_site_keys
from electra.ops import Ops, Prediction
from electra.ops.reference.linear_cross_entropy import vocabulary_logits

HEAD_CALL_SITE = 3_000_003  # far from the encoder's sites, so that the head's dropout is its own
FORBIDDEN = -1000.0  # added to the score of a token that no answer may start or end at


class MaskedHead(nn.Module):
    """The MLM head: a distribution over the vocabulary, through the token table that the embeddings use."""

    def __init__(self, width: int, embedding: int, vocab: int, *, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.dense = nn.Linear(width, embedding)
        self.norm = Norm(embedding)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(
        self,
        hidden_MD: Tensor,
        table_VE: Tensor,
        gold_M: Tensor,
        keys_M: Tensor | None = None,
        *,
        logits: bool = True,
    ) -> Prediction:
        """The loss of the original tokens and, with keys, a sample of each distribution.

        Without `logits`, an implementation that never holds them in memory may run.
        """
        return self._ops.linear_cross_entropy(
            self.states(hidden_MD), table_VE, self.bias, gold_M, keys_M, logits=logits
        )

    def logits(self, hidden_MD: Tensor, table_VE: Tensor, bias_V: Tensor) -> Tensor:
        """(M, V) logits over a table and bias that may be padded."""
        return vocabulary_logits(self.states(hidden_MD), table_VE, bias_V)

    def states(self, hidden_MD: Tensor) -> Tensor:
        """(M, E) what is compared with every entry of the token table."""
        return self._ops.linear_gelu_norm(
            hidden_MD, self.dense.weight, self.dense.bias, self.norm.weight, self.norm.bias
        )


class DetectionHead(nn.Module):
    """One logit a token: how much it looks replaced."""

    def __init__(self, width: int, *, ops: Ops) -> None:
        super().__init__()
        self._ops = ops
        self.dense = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """(B, L) fp32."""
        return self._ops.rtd_logits(hidden_BLD, self.dense.weight, self.dense.bias, self.score.weight, self.score.bias)


class CopyHead(nn.Module):
    """Logits over the vocabulary for every token, and one for keeping the token that is there."""

    def __init__(self, width: int, embedding: int, vocab: int, *, ops: Ops) -> None:
        super().__init__()
        self.masked = MaskedHead(width, embedding, vocab, ops=ops)
        self.copy = nn.Linear(width, 1)

    def copies(self, hidden_BLD: Tensor) -> Tensor:
        """(B, L) logits of keeping the token."""
        scores_BL: Tensor = self.copy(hidden_BLD).squeeze(-1)
        return scores_BL.float()


class OutputHead(nn.Module):
    """Dropout and one linear layer: C numbers for a sequence from its first token, or for every token."""

    def __init__(self, width: int, outputs: int, *, rate: float, first: bool, ops: Ops) -> None:
        super().__init__()
        self.rate, self.first, self._ops = rate, first, ops
        self.out = FullLinear(width, outputs)

    def forward(self, hidden_BLD: Tensor, keys_B: Tensor | None = None) -> Tensor:
        """(B, C), or (B, L, C) where every token is asked."""
        x = hidden_BLD[:, 0] if self.first else hidden_BLD
        keys = call_site_keys(self._ops, keys_B, HEAD_CALL_SITE)
        scores: Tensor = self.out(self._ops.dropout(x, self.rate, keys))
        return scores


class MeanHead(nn.Module):
    """One vector a sequence: the mean of its hidden states. It has no weights: what is trained is the encoder."""

    def forward(self, hidden_BLD: Tensor, lengths_B: Tensor) -> Tensor:
        """(B, D) fp32, [CLS] and [SEP] included, padding not."""
        place_L = torch.arange(hidden_BLD.shape[1], device=hidden_BLD.device)
        inside_BL1 = (place_L < lengths_B[:, None])[:, :, None]
        return (hidden_BLD.float() * inside_BL1).sum(1) / lengths_B[:, None]


class PlainSpanHead(nn.Module):
    """Where an answer starts and where it ends, each by itself: transformers' question-answering head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = FullLinear(width, 2)

    def forward(self, hidden_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L) scores of the start tokens, and of the end tokens."""
        starts_BL, ends_BL = self.out(hidden_BLD).unbind(-1)
        return starts_BL, ends_BL


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
        scores_BKL: Tensor = self.end(F.gelu(inner_BKLI)).squeeze(-1)
        return scores_BKL + FORBIDDEN * (~allowed_BL).float()[:, None]

    def nulls(self, hidden_BLD: Tensor, start_scores_BL: Tensor) -> Tensor:
        """(B,) scores that the question has no answer here."""
        hidden_BLD = hidden_BLD.float()
        meant_BD = (start_scores_BL.softmax(1)[..., None] * hidden_BLD).sum(1)
        inner_BI = F.gelu(self.null_inner(torch.cat((hidden_BLD[:, 0], meant_BD), dim=1)))
        scores_B: Tensor = self.null(inner_BI).squeeze(-1)
        return scores_B
