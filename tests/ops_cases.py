"""Every op with inputs of some shapes: what the parity suite and others run each backend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from ops_backends import Draw
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Spans, document_spans
from electra.config.schema import MaskingConfig
from electra.ops import ParameterGroup, Tables
from electra.ops.reference.choose_masked import choose_masked

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """An op with inputs of some shape.

    `roundings` says how far off outputs and gradients may be in 16 bits, `single` in fp32, as a share of the largest.
    """

    op: str
    name: str
    inputs: Callable[[Draw], Inputs]
    options: dict[str, Inputs] = field(default_factory=dict)
    """Further arguments of single backends."""
    only: tuple[str, ...] = ()
    """The backends that know this shape, where not all do."""
    half: bool = True
    """Whether it computes in 16 bits too."""
    gradients: bool = True
    fixed: tuple[str, ...] = ()
    """Floating-point inputs that nobody takes the gradient of."""
    roundings: tuple[float, float] = (2, 4)
    single: float = 5e-6


def ragged(draw: Draw, sequences: int, length: int) -> Tensor:
    """Lengths from all of the row to one token."""
    return torch.linspace(length, 1, sequences).int().to(draw.device)


# --- what each op is given ---


def keys_of(shape: tuple[int, ...], call_site: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {"keys": draw.integers(-(2**31), 2**31, *shape, seed=1), "call_site": call_site}


def dropout_of(*shape: int, rate: float) -> Callable[[Draw], Inputs]:
    return lambda draw: {"x": draw.numbers(*shape, seed=1), "rate": rate, "keys_B": draw.keys(shape[0])}


def embeddings_of(sequences: int, length: int, size: int, vocab: int, rate: float) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        ids = draw.integers(0, vocab, sequences, length, seed=1)
        ids[:, : length // 3] = 3  # many repeats
        starts = torch.linspace(0, length, sequences)[:, None].to(draw.device)
        shapes = ((vocab, size), (length + 5, size), (2, size), (size,), (size,))
        tables = Tables(*(draw.full(*shape, seed=seed, scale=0.5) for seed, shape in enumerate(shapes)))
        segments = (torch.arange(length, device=draw.device) >= starts).int()
        keys = draw.keys(sequences) if rate else None
        arguments = {"ids_BL": ids, "segments_BL": segments, "keys_B": keys, "tables": tables}
        return {**arguments, "rate": rate, "dtype": torch.float32, "base_VE": None}

    return inputs


def linear_of(sequences: int, length: int, size: int, width: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "x_BLE": draw.numbers(sequences, length, size, seed=1),
        "weight_DE": draw.numbers(width, size, seed=2, scale=size**-0.5),
        "bias_D": draw.numbers(width, seed=3),
    }


def attention_of(
    sequences: int, length: int, heads: int, head: int, rate: float, call_site: int,
    *, full: bool = False, documents: bool = False,
) -> Callable[[Draw], Inputs]:  # fmt: skip
    def inputs(draw: Draw) -> Inputs:
        width = heads * head
        return {
            "x_BLD": draw.numbers(sequences, length, width, seed=1),
            "weight_3DD": draw.numbers(3 * width, width, seed=2, scale=1.2 * width**-0.5),
            "bias_3D": draw.numbers(3 * width, seed=3, scale=0.5),
            "heads": heads,
            "lengths_B": None if full or documents else ragged(draw, sequences, length),
            "spans": spans_of(draw, sequences, length) if documents else None,
            "rate": rate,
            "keys_B": draw.keys(sequences),
            "call_site": call_site,
        }

    return inputs


def spans_of(draw: Draw, sequences: int, length: int) -> Spans:
    """Documents of many sizes: one token, the rest of a row, across blocks and from odd positions on."""
    ids = torch.full((sequences, length), 9, device=draw.device)
    ids[0, length // 3], ids[-1, :7], ids[-1, length // 2] = 3, 3, 3
    return Spans(*(bound.int() for bound in document_spans(ids, 3)))


def norm_of(
    sequences: int, length: int, width: int, inner: int, rate: float, call_site: int
) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "x_BLD": draw.numbers(sequences, length, width, seed=1) + 0.5,
        "branch_BLF": draw.numbers(sequences, length, inner, seed=2),
        "weight_DF": draw.numbers(width, inner, seed=3, scale=inner**-0.5),
        "bias_D": draw.numbers(width, seed=4),
        "gamma_D": draw.full(width, seed=5, scale=0.3) + 1,
        "beta_D": draw.full(width, seed=6),
        "rate": rate,
        "keys_B": draw.keys(sequences) if rate else None,
        "call_site": call_site,
    }


def mlp_of(tokens: int, width: int, ffn: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "x": draw.numbers(tokens, width, seed=1),
        "weight_FD": draw.numbers(ffn, width, seed=2, scale=2 * width**-0.5),
        "bias_F": draw.numbers(ffn, seed=3),
        "down_DF": draw.numbers(width, ffn, seed=4, scale=ffn**-0.5),
    }


def stack_of(
    sequences: int, length: int, width: int, heads: int, ffn: int, rate: float, attention_rate: float,
    *, layers: int = 2, full: bool = False, documents: bool = False, recompute: bool = False,
) -> Callable[[Draw], Inputs]:  # fmt: skip
    def weights(draw: Draw, number: int) -> list[Tensor]:
        shapes = ((3 * width, width), (width, width), (), (ffn, width), (width, ffn), ())
        made: list[Tensor] = []
        for place, shape in enumerate(shapes):
            seed = 100 * number + 10 * place
            if not shape:
                made += [draw.full(width, seed=seed, scale=0.2) + 1, draw.full(width, seed=seed + 1, scale=0.2)]
                continue
            made.append(draw.numbers(*shape, seed=seed, scale=1.2 * shape[1] ** -0.5))
            made.append(unaligned(draw.numbers(shape[0], seed=seed + 1, scale=0.2)))
        return made

    def inputs(draw: Draw) -> Inputs:
        return {
            "x_BLD": draw.numbers(sequences, length, width, seed=1),
            "layers": [weights(draw, number) for number in range(layers)],
            "heads": heads,
            "rate": rate,
            "attention_rate": attention_rate,
            "lengths_B": None if full or documents else ragged(draw, sequences, length),
            "spans": spans_of(draw, sequences, length) if documents else None,
            "keys_B": draw.keys(sequences),
            "recompute": recompute,
        }

    return inputs


def unaligned(x: Tensor) -> Tensor:
    """At any address that its dtype allows, as a vector behind others in one buffer."""
    return torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].copy_(x)


def head_of(count: int, width: int, size: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "x_MD": draw.numbers(count, width, seed=1),
        "weight_ED": draw.numbers(size, width, seed=2, scale=width**-0.5),
        "bias_E": draw.numbers(size, seed=3),
        "gamma_E": draw.full(size, seed=4),
        "beta_E": draw.full(size, seed=5),
    }


def detection_of(sequences: int, length: int, width: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "x_BLD": draw.numbers(sequences, length, width, seed=1),
        "weight_DD": draw.numbers(width, width, seed=2, scale=width**-0.5),
        "bias_D": draw.numbers(width, seed=3),
        "score_1D": draw.numbers(1, width, seed=4, scale=width**-0.5),
        "score_bias_1": draw.numbers(1, seed=5),
    }


def gold_of(draw: Draw, rows: int, entries: int) -> Tensor:
    """Entries from the first to the last one."""
    return torch.linspace(0, entries - 1, rows).round().long().to(draw.device)


def prediction_of(
    rows: int, size: int, entries: int, *, logits: bool, full_table: bool = False, sample: bool = True
) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        numbers = draw.full if full_table else draw.numbers
        # Logits that are rounded to 16 bits make another distribution, and other samples.
        sampled = sample and (draw.dtype == torch.float32 or not logits)
        return {
            "x_ME": draw.numbers(rows, size, seed=1),
            "table_VE": numbers(entries, size, seed=2, scale=2 * size**-0.5),
            "bias_V": numbers(entries, seed=3),
            "gold_M": gold_of(draw, rows, entries),
            "keys_M": draw.integers(-(2**31), 2**31, rows, seed=4) if sampled else None,
            "logits": logits,
        }

    return inputs


def copies_of(rows: int, size: int, entries: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "x_ME": draw.numbers(rows, size, seed=1),
        "table_VE": draw.numbers(entries, size, seed=2, scale=size**-0.5),
        "bias_V": draw.numbers(entries, seed=3),
        "copy_M": draw.full(rows, seed=4, scale=3.0),
        "gold_M": gold_of(draw, rows, entries),
        "same_M": draw.integers(0, 2, rows, seed=5).bool(),
        "weight_M": draw.integers(0, 2, rows, seed=6).float(),
    }


SPECIAL, VOCAB, MASK_ID = (0, 2, 3, 4), 50, 4


def rows_of(draw: Draw, sequences: int, length: int) -> Tensor:
    """Rows as the loader makes them: ids, two lengths and keys side by side; the last has only special tokens."""
    rows = draw.integers(0, VOCAB, sequences, length + 3, seed=length)
    rows[:, length] = draw.integers(1, length + 1, sequences, seed=1)
    rows[0, length], rows[-1, :length] = length, SPECIAL[1]
    rows[:, length + 1] = draw.integers(0, length + 1, sequences, seed=2)
    rows[:, length + 2] = draw.integers(-(2**31), 2**31, sequences, seed=3)
    return rows


def batch_of(draw: Draw, sequences: int, length: int) -> Inputs:
    rows = rows_of(draw, sequences, length)
    return {"ids_BL": rows[:, :length], "lengths_B": rows[:, length], "keys_B": rows[:, length + 2]}


def masked_of(draw: Draw, sequences: int, length: int, policy: str) -> MaskedPositions:
    masking = MaskingConfig(rate=0.5, policy=policy)  # type: ignore[arg-type]
    batch = {name: part.cpu() for name, part in batch_of(draw, sequences, length).items()}
    return MaskedPositions(*(part.to(draw.device) for part in choose_masked(**batch, masking=masking, special=SPECIAL)))


def choice_of(sequences: int, length: int, rate: float, policy: str) -> Callable[[Draw], Inputs]:
    masking = MaskingConfig(rate=rate, policy=policy)  # type: ignore[arg-type]
    return lambda draw: {**batch_of(draw, sequences, length), "masking": masking, "special": SPECIAL}


def mask_of(sequences: int, length: int, mask_share: float, random_share: float) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        batch, masked = batch_of(draw, sequences, length), masked_of(draw, sequences, length, "official")
        arguments = {"ids_BL": batch["ids_BL"], "keys_B": batch["keys_B"], "masked": masked}
        return {
            **arguments,
            "mask_share": mask_share,
            "random_share": random_share,
            "mask_id": MASK_ID,
            "vocab": VOCAB,
        }

    return inputs


def targets_of(sequences: int, length: int) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        batch, masked = batch_of(draw, sequences, length), masked_of(draw, sequences, length, "official")
        return {"ids_BL": batch["ids_BL"], "keys_B": batch["keys_B"], "masked": masked}

    return inputs


def samples_of(sequences: int, length: int, *, average: bool) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        masked = masked_of(draw, sequences, length, "official" if average else "without_replacement")
        ids = batch_of(draw, sequences, length)["ids_BL"]
        sampled = draw.integers(0, VOCAB, masked.used_BM.numel(), seed=5, dtype=torch.long)
        return {"ids_BL": ids, "masked": masked, "sampled_M": sampled, "average": average}

    return inputs


def counts_of(sequences: int, length: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "used_BM": masked_of(draw, sequences, length, "official").used_BM,
        "lengths_B": batch_of(draw, sequences, length)["lengths_B"],
    }


def loss_of(sequences: int, length: int) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        batch = batch_of(draw, sequences, length)
        ids, lengths = batch["ids_BL"], batch["lengths_B"]
        logits = draw.full(sequences, length, seed=1, scale=5.0)
        logits[0, :4] = draw.tensor([0.0, 100.0, -100.0, 20.0])
        changed = draw.integers(0, 3, sequences, length, seed=2) == 0
        changed &= torch.arange(length, device=draw.device) < lengths[:, None]
        used = masked_of(draw, sequences, length, "official").used_BM
        corrupted = torch.where(changed, ids + 1, ids)
        names = ("logits_BL", "corrupted_ids_BL", "ids_BL", "lengths_B", "used_BM")
        return dict(zip(names, (logits, corrupted, ids, lengths, used), strict=True))

    return inputs


def sum_of(count: int) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "nll_M": draw.full(count, seed=1),
        "used_BM": draw.integers(0, 5, count, 1, seed=2).bool(),
    }


def joint_of(masked: float, tokens: float) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "rtd_sum": draw.tensor(70.5),
        "mlm_sum": draw.tensor(31.25),
        "counts": draw.tensor([masked, tokens, 7.0]),
        "rtd_weight": 50.0,
        "mlm_weight": 0.5,
    }


def gradient_of(count: int, scale: float) -> Callable[[Draw], Inputs]:
    return lambda draw: {"gradient_N": draw.full(count, seed=count, scale=scale), "clip": 2.0}


def update_of(ends: tuple[int, ...]) -> Callable[[Draw], Inputs]:
    def inputs(draw: Draw) -> Inputs:
        count, starts = ends[-1], (0, *ends)
        groups = [
            ParameterGroup(slice(start, end), 1.0 / (1 + number), 0.01 * (number % 2))
            for number, (start, end) in enumerate(zip(starts, ends, strict=False))
        ]
        square = draw.full(count, seed=4).square()
        buffers = {"weights_N": draw.full(count, seed=1), "gradient_N": draw.full(count, seed=2)}
        buffers |= {"average_N": draw.full(count, seed=3), "square_N": square, "copy": torch.zeros_like(square[:2500])}
        scalars = {"lr": draw.tensor(1e-2), "divisor": draw.tensor(3.0), "skipped": draw.tensor(0.0)}
        settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6, "copied": slice(700, 3200)}
        return {**buffers, **scalars, "groups": groups, **settings}

    return inputs


def totals_of(skipped: float) -> Callable[[Draw], Inputs]:
    return lambda draw: {
        "totals": torch.arange(7.0, dtype=torch.float64, device=draw.device),
        "last_norm": draw.tensor(0.0),
        "sums_S": draw.tensor([1.5, torch.nan, 3.0, torch.inf, -torch.inf]),
        "norm": draw.tensor(4.25),
        "skipped": draw.tensor(skipped),
    }


SHAPES = ((5, 16), (4, 33), (3, 128), (2, 200), (3, 9))
FULL: Any = {"half": False}  # always fp32
EXACT: Any = {"half": False, "gradients": False}
CASES = [
    *(Case("fold_keys", "x".join(map(str, shape)), keys_of(shape, call_site), **EXACT)
      for shape, call_site in (((1,), 7), ((1030,), 0), ((3, 700), 1_000_003), ((5, 1, 2), 5_000_000))),
    Case("dropout", "odd", dropout_of(3, 5, 33, rate=0.3)),
    Case("dropout", "rare", dropout_of(5, 600, rate=0.003)),
    Case("embeddings", "3x20x48", embeddings_of(3, 20, 48, 50, 0.1), single=2e-5, **FULL),
    Case("embeddings", "odd width, two programs", embeddings_of(2, 33, 33, 300, 0.3), {"triton": {"max_programs": 2}},
         single=2e-5, **FULL),
    Case("embeddings", "no dropout", embeddings_of(1, 17, 128, 7, 0.0), single=2e-5, **FULL),
    Case("embeddings", "wide", embeddings_of(2, 5, 600, 40, 0.1), {"triton": {"max_programs": 3}}, single=2e-5, **FULL),
    Case("linear", "3x33", linear_of(3, 33, 24, 48)),
    Case("linear", "one token", linear_of(1, 1, 16, 7)),
    Case("linear", "many sequences", linear_of(40, 5, 8, 64)),
    Case("attention", "37 tokens", attention_of(3, 37, 1, 32, 0.1, 4), roundings=(3, 5)),
    Case("attention", "no padding", attention_of(2, 17, 3, 16, 0.3, 0, full=True), roundings=(3, 5)),
    Case("attention", "16 tokens", attention_of(2, 16, 2, 16, 0.5, 1), roundings=(3, 5)),
    Case("attention", "no dropout", attention_of(2, 99, 2, 16, 0.0, 2), roundings=(3, 5), half=False),
    Case("attention", "128 tokens", attention_of(1, 128, 1, 64, 0.1, 10, full=True), roundings=(3, 5)),
    Case("attention", "129 tokens", attention_of(1, 129, 1, 16, 0.1, 3, full=True),
         only=("triton-long",), roundings=(3, 5)),
    Case("attention", "200 tokens", attention_of(3, 200, 1, 16, 0.3, 5), only=("triton-long",), roundings=(3, 5),
         half=False),
    Case("attention", "40 tokens in documents", attention_of(3, 40, 2, 32, 0.1, 4, documents=True),
         only=("triton-long",), roundings=(3, 5)),
    Case("attention", "200 tokens in documents", attention_of(2, 200, 1, 16, 0.3, 5, documents=True),
         only=("triton-long",), roundings=(3, 5), half=False),
    *(Case("attention", f"heads of 64, {shape[1]} tokens, dropout {shape[3]}", attention_of(*shape[:3], 64, *shape[3:]),
           {"cuda": {"multiprocessors": 1}}, only=("cuda",), roundings=(3, 5))  # a block goes through several heads
      for shape in ((1, 128, 1, 0.1, 3), (2, 100, 2, 0.1, 0), (3, 33, 1, 0.3, 70), (4, 70, 1, 0.1, 5),
                    (1, 128, 1, 0.0, 0), (2, 16, 2, 0.5, 1))),
    Case("add_dropout_norm", "one program", norm_of(3, 37, 48, 20, 0.1, 1), {"triton": {"max_programs": 1}}),
    Case("add_dropout_norm", "no dropout", norm_of(2, 19, 96, 20, 0.0, 2)),
    Case("add_dropout_norm", "three programs", norm_of(2, 43, 96, 7, 0.3, 5), {"triton": {"max_programs": 3}}),
    Case("add_dropout_norm", "odd width", norm_of(1, 16, 33, 5, 0.1, 8)),
    Case("add_dropout_norm", "a row larger than a program's tile", norm_of(2, 3, 5000, 4, 0.1, 3)),
    Case("add_dropout_norm", "one token", norm_of(1, 1, 130, 9, 0.5, 4)),
    Case("linear_gelu", "111x80", mlp_of(111, 32, 80), {"triton": {"rows": {"max_rows": 1}}}),
    Case("linear_gelu", "37x130", mlp_of(37, 16, 130)),
    Case("linear_gelu", "one token", mlp_of(1, 8, 5)),
    Case("linear_gelu", "wide", mlp_of(70, 20, 300), {"triton": {"rows": {"max_rows": 2}}}),
    *(Case("linear_gelu", f"width 256, {tokens} tokens", mlp_of(tokens, 256, ffn),
           {"cuda": {"blocks": {"blocks": blocks}}}, only=("cuda",))
      for tokens, ffn, blocks in ((64, 128, 264), (300, 256, 4), (7, 128, 1), (400, 128, 1))),
    *(Case("encoder_stack", f"{name}, {kernels}", stack_of(*shape, **how), {"triton": {"kernels": kernels, **batched}},
           only=("triton",) if kernels == "few rows" else ("triton", "cpp"), roundings=(16, 24), single=3e-5, half=half)
      for name, kernels, shape, how, batched, half in (
          ("ragged", "short", (3, 33, 48, 3, 80, 0.1, 0.3), {}, {"batched_elements": 0}, True),
          ("ragged", "few rows", (3, 33, 48, 3, 80, 0.1, 0.3), {}, {}, False),
          ("no padding", "short", (1, 17, 48, 3, 80, 0.3, 0.0), {"full": True}, {}, False),
          ("no dropout", "short", (2, 41, 96, 3, 80, 0.0, 0.0), {}, {"batched_elements": 0}, False),
          ("recomputed", "short", (2, 24, 32, 2, 81, 0.1, 0.2), {"recompute": True}, {}, False),
          ("140 tokens", "long", (2, 140, 32, 1, 80, 0.1, 0.2), {"layers": 1}, {}, False),
          ("documents", "long", (2, 40, 32, 1, 80, 0.1, 0.3), {"documents": True}, {}, True),
          ("recomputed, documents", "long", (2, 70, 32, 1, 80, 0.1, 0.2), {"documents": True, "recompute": True}, {},
           False))),
    *(Case("encoder_stack", name, stack_of(*shape, **how), only=("cpp",), roundings=(16, 24), single=3e-5)
      for name, shape, how in (  # what AMX knows, where the processor has it
          ("heads of 32", (3, 45, 64, 2, 96, 0.1, 0.2), {}),
          ("heads of 64", (2, 64, 128, 2, 160, 0.1, 0.1), {"full": True}),
          ("heads of 32, documents", (2, 70, 32, 1, 96, 0.0, 0.3), {"documents": True}),
          ("heads of 64, 300 tokens", (1, 300, 64, 1, 96, 0.1, 0.0), {"layers": 1}))),
    *(Case("encoder_stack", f"{name}, {kernels}", stack_of(*shape, **how), {"cuda": {"kernels": kernels}},
           only=("cuda",), roundings=(16, 24))
      for name, kernels, shape, how in (
          ("100 tokens", "cuda attention", (2, 100, 128, 2, 192, 0.1, 0.1), {"layers": 1}),
          ("ragged", "cuda", (2, 33, 256, 4, 256, 0.1, 0.1), {"layers": 1}),
          ("128 tokens", "width 64", (1, 128, 64, 1, 256, 0.1, 0.1), {"layers": 1, "full": True}),
          ("ragged", "width 64", (2, 50, 64, 1, 256, 0.2, 0.1), {}),
          ("two launches", "width 64, one a launch", (1, 17, 64, 1, 256, 0.0, 0.3), {}),
          ("recomputed", "width 64", (1, 17, 64, 1, 256, 0.3, 0.0), {"recompute": True, "layers": 1}),
          ("no dropout", "width 64", (1, 90, 64, 1, 256, 0.0, 0.0), {"layers": 1}),
          ("100 tokens", "width 256", (1, 100, 256, 4, 1024, 0.1, 0.1), {"layers": 1, "full": True}),
          ("two launches", "width 256, one a launch", (1, 17, 256, 4, 1024, 0.0, 0.3), {}),
          ("two layers", "width 256, backward", (1, 70, 256, 4, 1024, 0.1, 0.1), {}),
          ("128 tokens", "width 256, backward", (1, 128, 256, 4, 1024, 0.1, 0.1), {"layers": 1, "full": True}),
          ("two sequences", "width 256, backward", (2, 90, 256, 4, 1024, 0.3, 0.0), {}),
          ("three layers", "width 256, backward", (1, 17, 256, 4, 1024, 0.0, 0.0), {"layers": 3}),
          ("recomputed", "width 256, backward", (1, 40, 256, 4, 1024, 0.0, 0.1), {"recompute": True}))),
    Case("linear_gelu_norm", "two programs", head_of(37, 24, 48), {"triton": {"max_programs": 2}}),
    Case("linear_gelu_norm", "one row", head_of(1, 16, 128)),
    Case("linear_gelu_norm", "odd size", head_of(130, 64, 33), {"triton": {"max_programs": 1}}, roundings=(4, 8)),
    Case("linear_gelu_norm", "large", head_of(5, 32, 600), {"triton": {"max_programs": 3}}),
    Case("rtd_logits", "two programs", detection_of(3, 33, 48), {"triton": {"max_programs": 2}}),
    Case("rtd_logits", "one token", detection_of(1, 1, 16)),
    Case("rtd_logits", "256 wide", detection_of(2, 40, 256), {"triton": {"max_programs": 3}}),
    Case("linear_cross_entropy", "9 blocks", prediction_of(37, 24, 9 * 128, logits=True)),
    Case("linear_cross_entropy", "one block", prediction_of(5, 24, 128, logits=True)),
    Case("linear_cross_entropy", "33 blocks", prediction_of(3, 8, 33 * 128, logits=True)),  # more than a program's step
    Case("linear_cross_entropy", "many rows", prediction_of(260, 16, 200, logits=True, sample=False),
         half=False),
    Case("linear_cross_entropy", "an fp32 table", prediction_of(9, 24, 1100, logits=True, full_table=True)),
    Case("linear_cross_entropy", "without logits", prediction_of(9, 24, 200, logits=False, sample=False)),
    *(Case("linear_cross_entropy", f"{rows} rows of 128",
           prediction_of(rows, 128, entries, logits=False, full_table=full), only=("cuda",))
      for rows, entries, full in ((37, 300, False), (200, 200, True))),
    Case("copy_cross_entropy", "40 rows", copies_of(40, 24, 200), fixed=("weight_M",)),
    Case("copy_cross_entropy", "one row", copies_of(1, 16, 128), fixed=("weight_M",)),
    *(Case("rtd_loss", f"{b}x{n}", loss_of(b, n), **FULL) for b, n in SHAPES),
    *(Case("masked_sum", str(count), sum_of(count), **FULL) for count in (1, 40, 5000)),
    *(Case("joint_loss", f"{masked:.0f} of {tokens:.0f}", joint_of(masked, tokens), fixed=("counts",), **FULL)
      for masked, tokens in ((19.0, 128.0), (0.0, 3.0), (0.0, 0.0))),
    *(Case("split_rows", f"{b}x{n}", lambda draw, b=b, n=n: {"rows": rows_of(draw, b, n)}, **EXACT) for b, n in SHAPES),
    *(Case("choose_masked", f"{b}x{n} at {rate}, {policy}", choice_of(b, n, rate, policy), **EXACT)
      for b, n in SHAPES for rate in (0.15, 0.5, 1.0) for policy in ("official", "without_replacement")),
    *(Case("count_targets", f"{b}x{n}", counts_of(b, n), **EXACT) for b, n in (*SHAPES, (300, 20), (1, 9))),
    *(Case("apply_mask", f"{b}x{n}, {mask} [MASK]", mask_of(b, n, mask, other), **EXACT)
      for b, n in SHAPES for mask, other in ((0.85, 0.0), (0.8, 0.1))),
    *(Case("masked_targets", f"{b}x{n}", targets_of(b, n), **EXACT) for b, n in SHAPES),
    *(Case("replace_tokens", f"{b}x{n}{', averaged' if average else ''}", samples_of(b, n, average=average), **EXACT)
      for b, n in SHAPES for average in (False, True)),
    *(Case("grad_norm", f"{count} of {scale}", gradient_of(count, scale), {"triton": {"max_programs": most}}, **EXACT)
      for count, scale, most in ((1, 1.0, 1024), (4096, 1e-3, 1024), (9000, 1e6, 1), (30_000, 1.0, 3))),
    *(Case("adamw", f"{len(ends)} groups", update_of(ends), **EXACT)
      for ends in ((5000,), (1200, 1201, 3000, 5000), (*range(77, 5000, 77), 5000))),
    *(Case("add_totals", f"skipped {skipped:.0f}", totals_of(skipped), **EXACT) for skipped in (0.0, 1.0)),
]  # fmt: skip
