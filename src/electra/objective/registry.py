"""The table of objectives: a config value in, the objective out.

A new objective gets a file, a function and an entry here, its name in `config/schema.py`, and in `config/validate.py`
what it cannot be combined with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from electra.batches.layout import Specials
from electra.config.schema import Config, GeneratorConfig
from electra.errors import ConfigError
from electra.objective.adversarial import Adversarial
from electra.objective.all_tokens_mlm import AllTokensMLM
from electra.objective.base import Objective
from electra.objective.contrastive import Contrastive
from electra.objective.corrective import Corrective
from electra.objective.curriculum import Curriculum, UnigramFirst
from electra.objective.electric import Electric
from electra.objective.generator_only import GeneratorOnly
from electra.objective.generators import (
    FrequencyGenerator,
    FrozenGenerator,
    Generator,
    MaskedGenerator,
    TwoTowerGenerator,
)
from electra.objective.mlm import MaskedLanguageModelling
from electra.objective.overlap import Overlap, Reader, information
from electra.objective.rare import RareFirst, rarity
from electra.objective.replace_mlm import ReplaceMLM
from electra.objective.rtd import ReplacedTokenDetection
from electra.ops import Ops

Frequencies = Callable[[], Tensor]
"""How often each token occurs in the training text; called only where something needs it."""


class Resources(NamedTuple):
    """What objectives are built from beside the config."""

    specials: Specials
    ops: Ops
    frequencies: Frequencies | None = None
    device: torch.device | None = None
    """Where tables are put."""
    progress: Tensor | None = None
    """The share of the run that is done, filled by the step; None means the end of every schedule."""
    copies: Tensor | None = None
    """1 while rows have altered copies and 0 before, filled by the run; None means that they have."""

    @property
    def special(self) -> tuple[int, ...]:
        """Ids that are never masked."""
        return self.specials.cls, self.specials.sep, self.specials.mask


def build_objective(config: Config, resources: Resources) -> Objective:
    """The configured objective over a vocabulary with these special tokens."""
    masking, generator, progress = config.masking, config.generator, resources.progress
    if progress is None or not (masking.rate_start or generator.temperature_start or generator.unigram_share):
        return _build(config, resources)
    largest = replace(config, masking=replace(masking, rate=masking.largest_rate))
    held_out = _build(config, resources._replace(progress=None))
    return Curriculum(training=_build(largest, resources), held_out=held_out, masking=masking, progress=progress)


def _build(config: Config, resources: Resources) -> Objective:
    objective = OBJECTIVES[config.objective.name](config, resources)
    if not config.masking.rare:
        return objective
    log_weights_V = rarity(_counted("masking.rare", resources), config.masking.rare).to(resources.device)
    return RareFirst(
        objective=objective, masking=config.masking, special=resources.special, log_weights_V=log_weights_V
    )


def build_stages(config: Config, resources: Resources) -> tuple[Objective, ...]:
    """The objectives that a run is trained by, one after another; the last is `build_objective`'s."""
    last = build_objective(config, resources)
    if config.train.algorithm != "two-stage":
        return (last,)
    generator = build_generator(config, resources)
    return GeneratorOnly(weights=config.objective, generator=generator, next=last, ops=resources.ops), last


def build_generator(config: Config, resources: Resources) -> Generator:
    """Where replacements come from."""
    kind, ops, progress = config.generator.kind, resources.ops, resources.progress
    if kind == "uniform":
        return _by_frequency(torch.ones(config.model.vocab_size), config.generator, resources)
    if kind == "unigram":
        return _by_frequency(_counted("generator.kind", resources), config.generator, resources)
    generator: Generator = TwoTowerGenerator(config=config.generator, ops=ops, progress=progress)
    if kind == "transformer":
        mask_id = resources.specials.mask
        generator = MaskedGenerator(
            masking=config.masking, config=config.generator, mask_id=mask_id, ops=ops, progress=progress
        )
    share = config.generator.unigram_share
    if progress is None or not share:
        return generator
    unigram = _by_frequency(_counted("generator.unigram_share", resources), config.generator, resources)
    return UnigramFirst(generator=generator, unigram=unigram, share=share, progress=progress)


def _by_frequency(weights_V: Tensor, generator: GeneratorConfig, resources: Resources) -> FrequencyGenerator:
    """Tokens in proportion to the weights, special ones never."""
    weights_V, specials = weights_V.clone(), resources.specials
    weights_V[[specials.pad, specials.cls, specials.sep, specials.mask]] = 0
    return FrequencyGenerator.of(weights_V, generator, ops=resources.ops, device=resources.device)


def _mlm(config: Config, resources: Resources) -> Objective:
    mlm = MaskedLanguageModelling(
        weights=config.objective,
        masking=config.masking,
        special=resources.special,
        mask_id=resources.specials.mask,
        ops=resources.ops,
    )
    return _with_overlap(mlm, config, resources)


def _rtd(config: Config, resources: Resources) -> Objective:
    generator = build_generator(config, resources)
    rtd = ReplacedTokenDetection(
        weights=config.objective,
        masking=config.masking,
        special=resources.special,
        generator=FrozenGenerator(generator=generator) if config.train.algorithm == "two-stage" else generator,
        ops=resources.ops,
        masked_only=config.objective.name == "rtd-15",
    )
    if config.train.algorithm == "adversarial":
        return Adversarial(rtd=rtd, generator=config.generator)
    if config.objective.contrastive_weight:
        return Contrastive(rtd=rtd)
    return _with_overlap(Corrective(rtd=rtd) if config.objective.correction_weight else rtd, config, resources)


def _with_overlap(objective: Reader, config: Config, resources: Resources) -> Objective:
    """The objective, and beside it, where asked for, how much of each segment stands in the other."""
    if not config.objective.overlap_weight:
        return objective
    information_V = information(_counted("objective.overlap_weight", resources)).to(resources.device)
    return Overlap(
        objective=objective,
        weight=config.objective.overlap_weight,
        information_V=information_V,
        special=resources.special,
        copies=resources.copies if config.data.copies else None,
    )


def _vocabulary(config: Config, resources: Resources, *, of: type[ReplaceMLM | AllTokensMLM]) -> Objective:
    """An objective whose main network predicts tokens of a corrupted text."""
    return of(
        weights=config.objective,
        masking=config.masking,
        special=resources.special,
        generator=build_generator(config, resources),
        ops=resources.ops,
    )


def _electric(config: Config, resources: Resources) -> Objective:
    generator = build_generator(config, resources)
    assert isinstance(generator, TwoTowerGenerator), "refused by the configuration's check"
    return Electric(
        weights=config.objective,
        masking=config.masking,
        special=resources.special,
        generator=generator,
        ops=resources.ops,
    )


OBJECTIVES: dict[str, Callable[[Config, Resources], Objective]] = {
    "rtd": _rtd,
    "rtd-15": _rtd,
    "replace-mlm": partial(_vocabulary, of=ReplaceMLM),
    "all-tokens-mlm": partial(_vocabulary, of=AllTokensMLM),
    "electric": _electric,
    "mlm": _mlm,
}
"""`objective.name` to what builds it."""


def _counted(key: str, resources: Resources) -> Tensor:
    if resources.frequencies is None:
        raise ConfigError(key, "needs the frequencies of the training text")
    return resources.frequencies()
