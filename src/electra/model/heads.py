"""What stands on an encoder: the masked-token head and the replaced-token head.

Shapes: B sequences, L length, D width, E embedding size, M predicted positions, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.model.layers import Norm


class MaskedHead(nn.Module):
    """Logits over the vocabulary, through the token table that the embeddings use."""

    def __init__(self, width: int, embedding: int, vocab: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, embedding)
        self.norm = Norm(embedding)
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, hidden_MD: Tensor, table_VE: Tensor, bias_V: Tensor) -> Tensor:
        x_ME = self.norm(F.gelu(self.dense(hidden_MD)))
        return F.linear(x_ME, table_VE.to(x_ME.dtype), bias_V.to(x_ME.dtype))


class DetectionHead(nn.Module):
    """One logit a token: how much it looks replaced."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        scores_BL: Tensor = self.score(F.gelu(self.dense(hidden_BLD))).squeeze(-1)
        return scores_BL.float()
