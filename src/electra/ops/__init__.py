"""Every numeric operation with more than one implementation: methods of one `Ops` that a model is handed.

`dispatch.select` decides once which implementation of each op runs. `reference/` is the specification of each in plain
PyTorch; `cpp/`, `triton/` and `cuda/` hold faster ones under the same file names. Callers never ask which they have.

Shapes: B sequences, L length, D width, E embedding size, F inner width of an MLP, V vocabulary, M masked positions (of
a sequence after B, of the whole batch alone), N parameters. Keys are 32-bit addresses of random bits (`electra.rng`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Spans

if TYPE_CHECKING:
    from electra.config.schema import MaskingConfig

NORM_EPS = 1e-12  # as the released weights were trained; 1e-5 moves the logits
NEVER = -1e4  # a logit that no softmax picks
VOCAB_BLOCK = 128  # vocabulary entries that sampling sums up together; tables are padded to whole blocks


class Tables(NamedTuple):
    """The weights of an embedding layer, all fp32."""

    token_VE: Tensor
    position_PE: Tensor
    segment_2E: Tensor
    gamma_E: Tensor
    beta_E: Tensor


class Prediction(NamedTuple):
    """What a head over the vocabulary gives at M positions."""

    logits_MV: Tensor | None
    """(M, V padded to whole blocks), where they were asked for."""
    nll_M: Tensor
    """-log p of the original tokens, fp32."""
    sampled_M: Tensor | None
    """One token drawn from each distribution, where keys were passed."""

    @property
    def best_M(self) -> Tensor:
        """The most likely tokens."""
        assert self.logits_MV is not None, "ask for the logits"
        return self.logits_MV.argmax(1)


class Detection(NamedTuple):
    """The replaced-token loss of a batch."""

    loss: Tensor
    """Sum of the binary cross-entropy over the scored tokens."""
    stats_6: Tensor
    """fp32: masked positions in use, loss, real tokens, replaced tokens, tokens classified right, tokens scored."""
    bce_BL: Tensor
    """The loss of every token."""


class GradNorm(NamedTuple):
    """The global gradient norm and what follows from it, all on the device."""

    norm: Tensor
    skipped: Tensor
    """1 where the norm is not finite: the step must change nothing."""
    divisor: Tensor
    """What the gradient is divided by, so that its norm is at most the clip."""


class ParameterGroup(NamedTuple):
    """A part of the flat buffers that learns at one rate."""

    part: slice
    scale: float
    """Its learning rate as a fraction of the run's."""
    weight_decay: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """One op's implementation and why it was chosen."""

    run: Callable[..., Any]
    backend: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """The implementations chosen for one model, its training step or its inference; immutable.

    `chosen` maps the name of each method below to what it runs.
    """

    chosen: Mapping[str, Chosen]

    def __post_init__(self) -> None:
        object.__setattr__(self, "chosen", MappingProxyType(dict(self.chosen)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Ops:
        return self  # nothing in it can change, so copies of a model share it

    def __iter__(self) -> Iterator[tuple[str, Chosen]]:
        """Op by op: its name and what was chosen, in the order of the methods."""
        return iter(self.chosen.items())

    # --- random keys and dropout ---

    def fold_keys(self, keys: Tensor, call_site: int) -> Tensor:
        """The child keys of int32 `keys` at an address: mix(keys ^ mix(call_site · golden)) + golden, as `rng.fold`."""
        folded: Tensor = self.chosen["fold_keys"].run(keys, call_site)
        return folded

    def dropout(self, x: Tensor, rate: float, keys_B: Tensor | None) -> Tensor:
        """x · keep / (1 - rate), where keep is random bits at (key, row, column); `x` itself without keys."""
        dropped: Tensor = self.chosen["dropout"].run(x, rate, keys_B)
        return dropped

    # --- embeddings and encoder ---

    def embeddings(
        self,
        ids_BL: Tensor,
        segments_BL: Tensor,
        keys_B: Tensor | None,
        tables: Tables,
        *,
        rate: float,
        dtype: torch.dtype,
        base_VE: Tensor | None = None,
    ) -> Tensor:
        """(B, L, E) dropout(norm(token[ids] + position + segment)), plus `base_VE[ids]` inside the norm where given.

        An implementation may round the result to `dtype`, which the encoder computes in.
        """
        run = self.chosen["embeddings"].run
        embedded_BLE: Tensor = run(ids_BL, segments_BL, keys_B, tables, rate=rate, dtype=dtype, base_VE=base_VE)
        return embedded_BLE

    def linear(self, x_BLE: Tensor, weight_DE: Tensor, bias_D: Tensor) -> Tensor:
        """(B, L, D) x · weightᵀ + bias."""
        projected_BLD: Tensor = self.chosen["linear"].run(x_BLE, weight_DE, bias_D)
        return projected_BLD

    def attention(
        self,
        x_BLD: Tensor,
        weight_3DD: Tensor,
        bias_3D: Tensor,
        *,
        heads: int,
        mask_B1LL: Tensor | None,
        rate: float,
        keys_B: Tensor | None,
        rotation_2LH: Tensor | None = None,
    ) -> Tensor:
        """(B, L, D) the heads' dropout(softmax(q·kᵀ / √H + mask)) · v side by side; q, k, v = x · weightᵀ + bias.

        `mask_B1LL` is added to the scores; its first and third dimensions may be 1. By `rotation_2LH`, cosines and
        sines, each pair of numbers of q and k turns first.
        """
        run = self.chosen["attention"].run
        settings = {"heads": heads, "mask_B1LL": mask_B1LL, "rate": rate, "keys_B": keys_B}
        mixed_BLD: Tensor = run(x_BLD, weight_3DD, bias_3D, **settings, rotation_2LH=rotation_2LH)
        return mixed_BLD

    def add_dropout_norm(
        self,
        x_BLD: Tensor,
        branch_BLF: Tensor,
        weight_DF: Tensor,
        bias_D: Tensor,
        gamma_D: Tensor,
        beta_D: Tensor,
        *,
        rate: float,
        keys_B: Tensor | None,
    ) -> Tensor:
        """(B, L, D) norm(x + dropout(branch · weightᵀ + bias)): what ends each half of a post-norm layer."""
        run = self.chosen["add_dropout_norm"].run
        weights = (weight_DF, bias_D, gamma_D, beta_D)
        normed_BLD: Tensor = run(x_BLD, branch_BLF, *weights, rate=rate, keys_B=keys_B)
        return normed_BLD

    def linear_gelu(self, x: Tensor, weight_FD: Tensor, bias_F: Tensor) -> Tensor:
        """(..., F) gelu(x · weightᵀ + bias), the GELU with the error function."""
        active: Tensor = self.chosen["linear_gelu"].run(x, weight_FD, bias_F)
        return active

    def encoder_stack(
        self,
        x_BLD: Tensor,
        layers: Sequence[nn.Module],
        *,
        lengths_B: Tensor | None,
        spans: Spans | None,
        hidden_LL: Tensor | None,
        keys_B: Tensor | None,
        recompute: bool,
        rotation_2LH: Tensor | None = None,
    ) -> Tensor:
        """(B, L, D) the output of `model.layers.Layer`s one after another.

        A token attends to the real tokens of its row (`lengths_B`; None: no padding), or to its document (`spans`), and
        never to those that `hidden_LL` hides from it. `recompute` saves each layer's input only, for less memory.
        `rotation_2LH` is that of `attention`.
        """
        run = self.chosen["encoder_stack"].run
        masks = {"lengths_B": lengths_B, "spans": spans, "hidden_LL": hidden_LL}
        others = {"keys_B": keys_B, "recompute": recompute, "rotation_2LH": rotation_2LH}
        hidden_BLD: Tensor = run(x_BLD, layers, **masks, **others)
        return hidden_BLD

    # --- heads and losses ---

    def linear_gelu_norm(
        self, x_MD: Tensor, weight_ED: Tensor, bias_E: Tensor, gamma_E: Tensor, beta_E: Tensor
    ) -> Tensor:
        """(M, E) norm(gelu(x · weightᵀ + bias)): what the MLM head compares with the token table."""
        states_ME: Tensor = self.chosen["linear_gelu_norm"].run(x_MD, weight_ED, bias_E, gamma_E, beta_E)
        return states_ME

    def rtd_logits(
        self, x_BLD: Tensor, weight_DD: Tensor, bias_D: Tensor, score_1D: Tensor, score_bias_1: Tensor
    ) -> Tensor:
        """(B, L) fp32 gelu(x · weightᵀ + bias) · scoreᵀ + score_bias: how much each token looks replaced."""
        logits_BL: Tensor = self.chosen["rtd_logits"].run(x_BLD, weight_DD, bias_D, score_1D, score_bias_1)
        return logits_BL

    def linear_cross_entropy(
        self,
        x_ME: Tensor,
        table_VE: Tensor,
        bias_V: Tensor,
        gold_M: Tensor,
        keys_M: Tensor | None,
        *,
        logits: bool,
    ) -> Prediction:
        """-log softmax(x · tableᵀ + bias)[gold] and, with keys, a sample of that distribution.

        Without `logits` an implementation need not hold an (M, V) tensor in memory.
        """
        run = self.chosen["linear_cross_entropy"].run
        prediction: Prediction = run(x_ME, table_VE, bias_V, gold_M, keys_M, logits=logits)
        return prediction

    def copy_cross_entropy(
        self,
        x_ME: Tensor,
        table_VE: Tensor,
        bias_V: Tensor,
        copy_M: Tensor,
        gold_M: Tensor,
        same_M: Tensor,
        weight_M: Tensor,
    ) -> Tensor:
        """Σ weight · -log(D·[same] + (1 - D)·softmax(x · tableᵀ + bias)[gold]), where D = sigmoid(copy)."""
        run = self.chosen["copy_cross_entropy"].run
        loss: Tensor = run(x_ME, table_VE, bias_V, copy_M, gold_M, same_M, weight_M)
        return loss

    def rtd_loss(
        self,
        logits_BL: Tensor,
        corrupted_ids_BL: Tensor,
        ids_BL: Tensor,
        lengths_B: Tensor,
        used_BM: Tensor,
        scored_BL: Tensor | None = None,
    ) -> Detection:
        """Binary cross-entropy of [corrupted ≠ original] over all real tokens, and the statistics of the log.

        `scored_BL` takes it over these tokens only: ELECTRA 15 % scores the masked positions alone.
        """
        run = self.chosen["rtd_loss"].run
        found: Detection = run(logits_BL, corrupted_ids_BL, ids_BL, lengths_B, used_BM, scored_BL)
        return found

    def masked_sum(self, nll_M: Tensor, used_BM: Tensor) -> Tensor:
        """Σ nll over the masked positions in use."""
        total: Tensor = self.chosen["masked_sum"].run(nll_M, used_BM)
        return total

    def joint_loss(
        self, rtd_sum: Tensor, mlm_sum: Tensor, counts: Tensor, *, rtd_weight: float, mlm_weight: float
    ) -> Tensor:
        """rtd_weight · rtd_sum / counts[1] + mlm_weight · mlm_sum / counts[0], each count at least 1."""
        run = self.chosen["joint_loss"].run
        loss: Tensor = run(rtd_sum, mlm_sum, counts, rtd_weight=rtd_weight, mlm_weight=mlm_weight)
        return loss

    # --- what is predicted and replaced ---

    def split_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(B,) lengths and (B, L) segment ids of the loader's rows."""
        split: tuple[Tensor, Tensor] = self.chosen["split_rows"].run(rows)
        return split

    def choose_masked(
        self, ids_BL: Tensor, lengths_B: Tensor, keys_B: Tensor, *, masking: MaskingConfig, special: tuple[int, ...]
    ) -> MaskedPositions:
        """The positions to predict: the rounded share of each row's tokens, never a special token or padding.

        They stand in the order drawn: the first k are a draw of k, at a lower rate, as `masking.rate_start` uses them.
        """
        run = self.chosen["choose_masked"].run
        masked: MaskedPositions = run(ids_BL, lengths_B, keys_B, masking=masking, special=special)
        return masked

    def count_targets(self, used_BM: Tensor, lengths_B: Tensor) -> Tensor:
        """(2,) fp32: masked positions in use, and real tokens."""
        counts_2: Tensor = self.chosen["count_targets"].run(used_BM, lengths_B)
        return counts_2

    def apply_mask(
        self,
        ids_BL: Tensor,
        keys_B: Tensor,
        masked: MaskedPositions,
        *,
        mask_share: float,
        random_share: float,
        mask_id: int,
        vocab: int,
    ) -> Tensor:
        """(B, L) ids with [MASK] at a share of the masked positions, a random token at another, the original elsewhere.

        One uniform draw a position decides: below `mask_share` [MASK], then for `random_share` more a random token.
        """
        run = self.chosen["apply_mask"].run
        shares = {"mask_share": mask_share, "random_share": random_share}
        masked_ids_BL: Tensor = run(ids_BL, keys_B, masked, **shares, mask_id=mask_id, vocab=vocab)
        return masked_ids_BL

    def masked_targets(self, ids_BL: Tensor, keys_B: Tensor, masked: MaskedPositions) -> tuple[Tensor, Tensor]:
        """(M,) int64 original tokens at the masked positions, and (M,) keys to draw their replacements with."""
        targets: tuple[Tensor, Tensor] = self.chosen["masked_targets"].run(ids_BL, keys_B, masked)
        return targets

    def replace_tokens(self, ids_BL: Tensor, masked: MaskedPositions, sampled_M: Tensor, *, average: bool) -> Tensor:
        """(B, L) ids with the samples at the masked positions in use.

        `average` writes the floored mean of the ids where a position was drawn twice, as the released code does.
        """
        run = self.chosen["replace_tokens"].run
        corrupted_ids_BL: Tensor = run(ids_BL, masked, sampled_M, average=average)
        return corrupted_ids_BL

    def generator_stream(self, device: torch.device) -> AbstractContextManager[Any]:
        """A context for the generator's forward and loss: a stream beside the discriminator's, or the one in use."""
        stream: AbstractContextManager[Any] = self.chosen["generator_stream"].run(device)
        return stream

    # --- the optimizer ---

    def grad_norm(self, gradient_N: Tensor, *, clip: float) -> GradNorm:
        """‖gradient‖₂ of the flat fp32 gradient, whether it is finite, and the divisor that clips it."""
        found: GradNorm = self.chosen["grad_norm"].run(gradient_N, clip=clip)
        return found

    def adamw(
        self,
        weights_N: Tensor,
        gradient_N: Tensor,
        average_N: Tensor,
        square_N: Tensor,
        groups: Sequence[ParameterGroup],
        *,
        lr: Tensor,
        beta1: float,
        beta2: float,
        eps: float,
        copy: Tensor | None,
        copied: slice,
    ) -> Callable[[GradNorm], None]:
        """A function that does one step of AdamW in place, without bias correction and with eps outside the root.

        g = gradient / divisor, which may replace it where scale > 0; average = beta1 · average + (1 - beta1) · g;
        square so of g²; then weights -= lr · scale · (average / (√square + eps) + weight_decay · weights). Skipped, it
        changes nothing. `lr` is read at each step; `copy` gets new weights, of the part `copied`, in its own precision.
        """
        run = self.chosen["adamw"].run
        buffers, settings = (weights_N, gradient_N, average_N, square_N), {"beta1": beta1, "beta2": beta2, "eps": eps}
        update: Callable[[GradNorm], None] = run(*buffers, groups, lr=lr, **settings, copy=copy, copied=copied)
        return update

    def add_totals(self, totals: Tensor, last_norm: Tensor, sums_S: Tensor, *, norm: Tensor, skipped: Tensor) -> None:
        """totals += (finite sums, 1, skipped), the sums only of a step that was not skipped; last_norm = norm."""
        self.chosen["add_totals"].run(totals, last_norm, sums_S, norm=norm, skipped=skipped)
