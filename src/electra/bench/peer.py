"""The same training step, written with `transformers` modules as a careful user would.

It shares the embeddings, computes logits over the whole vocabulary for every token as the modules do, and has the same
batch, length, dropout and masking rate. Positions are gathered, not chosen by a mask, so that nothing waits for the
device and the compiler sees one graph. On a CPU it runs in fp32, on a GPU under autocast where we compute in bf16.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from electra import hardware
from electra.batches.masking import max_masked
from electra.batches.sequences import unpack
from electra.bench.ours import CLS, FIRST_TOKEN, MASK, RATE, SEP
from electra.config.schema import Config, ModelConfig
from electra.model.encoder import Shape, discriminator_shape, generator_shape

Loss = Callable[[Tensor, Tensor], Tensor]


def peer_precision(precision: str, device: torch.device) -> torch.dtype:
    """What the peer multiplies in, where `train.precision` is this."""
    return hardware.compute_dtype(precision, device) if device.type == "cuda" else torch.float32


def peer_step(config: Config, rows: Tensor, *, compiled: bool) -> Callable[[], object]:
    """A function that trains on `rows` once, where they are."""
    device = rows.device
    model, loss = twin(config)
    model.to(device).train()
    optim = config.optim
    update = torch.optim.AdamW(
        model.parameters(),
        lr=RATE,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        fused=device.type == "cuda",
    )
    batch = unpack(rows)
    micro = config.train.micro_batch or len(rows)
    parts = list(zip(batch.ids_BL.long().split(micro), batch.segments_BL.long().split(micro), strict=True))
    run = torch.compile(loss, dynamic=False) if compiled else loss
    half = peer_precision(config.train.precision, device) == torch.bfloat16

    def step() -> None:
        for ids, segments in parts:
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                value = run(ids, segments) / len(parts)
            value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), optim.clip)
        update.step()
        update.zero_grad(set_to_none=True)

    return step


def twin(config: Config) -> tuple[nn.Module, Loss]:
    """The networks, and a function from token ids and segments to the loss."""
    return _mlm(config) if config.objective.name == "mlm" else _rtd(config)


def _rtd(config: Config) -> tuple[nn.Module, Loss]:
    generator = ElectraForMaskedLM(_sizes(config.model, generator_shape(config.model, config.generator)))
    discriminator = ElectraForPreTraining(_sizes(config.model, discriminator_shape(config.model)))
    discriminator.electra.embeddings = generator.electra.embeddings
    share, weights = config.masking.masked_share, config.objective

    def loss(ids: Tensor, segments: Tensor) -> Tensor:
        real = torch.ones_like(ids)
        masked_BM = _masked_positions(ids, config.masking.rate)
        gold = ids.gather(1, masked_BM)
        tokens = torch.where(torch.rand_like(gold, dtype=torch.float32) < share, MASK, gold)
        masked_ids = ids.scatter(1, masked_BM, tokens)
        logits = generator(input_ids=masked_ids, attention_mask=real, token_type_ids=segments).logits
        with torch.no_grad():
            picked = logits.detach().gather(1, masked_BM[:, :, None].expand(-1, -1, logits.shape[-1])).float()
            sampled = (picked - torch.empty_like(picked).exponential_().log()).argmax(-1)
            corrupted = ids.scatter(1, masked_BM, sampled)
        scores = discriminator(input_ids=corrupted, attention_mask=real, token_type_ids=segments).logits
        rtd = F.binary_cross_entropy_with_logits(scores.float(), (corrupted != ids).float())
        return weights.mlm_weight * _masked_loss(logits, masked_BM, gold) + weights.rtd_weight * rtd

    return nn.ModuleList([generator, discriminator]), loss


def _mlm(config: Config) -> tuple[nn.Module, Loss]:
    model = ElectraForMaskedLM(_sizes(config.model, discriminator_shape(config.model)))
    vocab = config.model.vocab_size

    def loss(ids: Tensor, segments: Tensor) -> Tensor:
        masked_BM = _masked_positions(ids, config.masking.rate)
        gold = ids.gather(1, masked_BM)
        dice = torch.rand_like(gold, dtype=torch.float32)
        other = torch.where(dice < 0.9, torch.randint_like(gold, FIRST_TOKEN, vocab), gold)
        masked_ids = ids.scatter(1, masked_BM, torch.where(dice < 0.8, MASK, other))
        logits = model(input_ids=masked_ids, attention_mask=torch.ones_like(ids), token_type_ids=segments).logits
        return config.objective.mlm_weight * _masked_loss(logits, masked_BM, gold)

    return model, loss


def _sizes(model: ModelConfig, shape: Shape) -> ElectraConfig:
    return ElectraConfig(
        vocab_size=model.vocab_size,
        embedding_size=shape.embedding,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.ffn,
        max_position_embeddings=model.positions,
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.attention_dropout,
        attn_implementation="sdpa",
    )


def _masked_positions(ids: Tensor, rate: float) -> Tensor:
    """Positions to predict, as many in every row, none of a special token."""
    order = torch.rand_like(ids, dtype=torch.float32).masked_fill((ids == CLS) | (ids == SEP), 2.0)
    return order.argsort(1)[:, : max_masked(ids.shape[1], rate)]


def _masked_loss(logits: Tensor, masked_BM: Tensor, gold: Tensor) -> Tensor:
    """Cross-entropy over every position, those not chosen ignored: what the modules compute from labels."""
    labels = torch.full(logits.shape[:2], -100, device=logits.device).scatter(1, masked_BM, gold)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
