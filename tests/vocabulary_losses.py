"""For tests of objectives that predict tokens: small networks with large weights, and their losses by plain loops."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from tiny import VOCAB, Trainer, in_double, layer_norm, make_electra, make_objective, ragged_rows, tiny_config
from torch import Tensor

from electra.batches.masking import MaskedPositions
from electra.batches.sequences import Sequences, unpack
from electra.config.schema import Config, GeneratorConfig, MaskingConfig, ObjectiveConfig, OptimConfig
from electra.model.electra import Electra
from electra.model.encoder import TwoTower
from electra.model.heads import CopyHead, MaskedHead
from electra.objective.base import Objective, Outcome

FEW = 12  # ids below this are special or in use in short documents


def config_of(name: str, *, dropout: float = 0.0, mlm: float = 1.0, rtd: float = 50.0, **parts: Any) -> Config:
    """A tiny configuration; `kind` and `tying` are the generator's, `policy` the masking's."""
    generator = GeneratorConfig(
        width=0.5, kind=parts.pop("kind", "transformer"), tying=parts.pop("tying", "embeddings")
    )
    masking = MaskingConfig(policy=parts.pop("policy", "without_replacement"), rate=0.3)
    objective = ObjectiveConfig(name=name, mlm_weight=mlm, rtd_weight=rtd)  # type: ignore[arg-type]
    return tiny_config(dropout=dropout, generator=generator, masking=masking, objective=objective, **parts)


def made(config: Config) -> tuple[Electra, Objective]:
    """Weights several times larger than a fresh network's, so that every part of the loss counts."""
    model, objective = make_electra(config), make_objective(config)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(5)
            if name.endswith(("head.bias", "masked.bias")):
                parameter.normal_(generator=noise)
                parameter[5:FEW] += 4  # tokens in use are likely: some samples are right
            if config.generator.tying == "gdes" and name == "embeddings.token.weight":
                parameter.normal_(std=0.1, generator=noise)
    return model, objective


def loss_of(model: Electra, objective: Objective, batch: Sequences) -> Outcome:
    masked = objective.choose_masked(batch)
    return objective.loss(model, batch, masked, objective.counts(batch, masked))


def gradients(config: Config) -> dict[str, Tensor]:
    model, objective = made(config)
    loss_of(model, objective, unpack(ragged_rows(8))).loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None for gradient in found.values())
    return cast(dict[str, Tensor], found)


def step_gradient(
    config: Config, rows: Tensor, *, micro: int, compute: torch.dtype = torch.float32
) -> tuple[Tensor, dict[str, float]]:
    """The gradient and the totals of one whole step, which leaves the weights as they are."""
    trainer = Trainer(config, micro=micro, compute=compute)
    trainer.step(rows, 0.0)
    return trainer.master.gradient.clone(), trainer.step.read()


NO_CLIP = OptimConfig(clip=1e9)


class Loops:
    """Both networks' predictions for a batch, one position at a time, in double precision.

    What the networks read is taken from the objective: how it is chosen has tests of its own.
    """

    def __init__(self, model: Electra, objective: Objective, batch: Sequences) -> None:
        self.model, self.batch = in_double(model), batch
        self.masked: MaskedPositions = objective.choose_masked(batch)
        with torch.no_grad():
            found = objective.evaluate(model, batch)
        assert found.corrupted_ids_BL is not None
        self.gold, self.masked_ids = batch.ids_BL.tolist(), found.masked_ids_BL.tolist()
        self.corrupted_ids = found.corrupted_ids_BL.tolist()
        self.used = [
            (row, position)
            for row, (positions, used) in enumerate(zip(*(t.tolist() for t in self.masked), strict=True))
            for position, flag in zip(positions, used, strict=True)
            if flag
        ]
        self.real = [(row, p) for row, size in enumerate(batch.lengths_B.tolist()) for p in range(size)]
        self.replaced = sum(self.corrupted_ids[r][p] != self.gold[r][p] for r, p in self.real)

    def generator_nll(self) -> list[float]:
        """-log p of the original at each masked position, by the generator."""
        model = self.model
        with torch.no_grad():
            x = model.generator_embeddings(torch.tensor(self.masked_ids), self.batch.segments_BL, None)
            assert model.generator is not None
            hidden = model.generator(x, self.batch.lengths_B, None)
        head, table = model.generator_head, model.generator_embeddings.token.weight
        assert head is not None
        assert isinstance(model.generator, TwoTower) == (hidden.shape[-1] == 2 * model.generator.shape.width)
        return [-math.log(self._probabilities(head, table, hidden[r, p])[self.gold[r][p]]) for r, p in self.used]

    def main_probabilities(self, places: list[tuple[int, int]]) -> list[list[float]]:
        """The main network's softmax at each of some places."""
        head = self.model.discriminator_head
        head = head.masked if isinstance(head, CopyHead) else head
        assert isinstance(head, MaskedHead)
        hidden = self.main_hidden()
        return [self._probabilities(head, self.table(), hidden[r, p]) for r, p in places]

    def main_hidden(self) -> Tensor:
        model, table = self.model, self.table()
        with torch.no_grad():
            e = model.embeddings
            segments = self.batch.segments_BL.long()
            token = table[torch.tensor(self.corrupted_ids)]
            summed = token + e.position.weight[: segments.shape[1]] + e.segment.weight[segments]
            hidden: Tensor = model.discriminator(layer_norm(e.norm, summed), self.batch.lengths_B, None)
        return hidden

    def table(self) -> Tensor:
        own = self.model.embeddings.token.weight
        return own + self.model.generator_embeddings.token.weight if self.model.shares_token_table else own

    @staticmethod
    def _probabilities(head: MaskedHead, table: Tensor, state: Tensor) -> list[float]:
        with torch.no_grad():
            x = layer_norm(head.norm, F.gelu(head.dense(state)))
            probabilities = torch.softmax(table @ x + head.bias, 0)
        assert len(probabilities) == VOCAB
        return probabilities.tolist()
