"""The table of objectives: a config value in, the objective out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from electra.batches.layout import Specials
from electra.config.schema import Config
from electra.errors import ConfigError
from electra.objective.adversarial import Adversarial
from electra.objective.all_tokens_mlm import AllTokensMLM
from electra.objective.base import Objective
from electra.objective.electric import Electric
from electra.objective.generator_only import Frozen, GeneratorOnly
from electra.objective.mlm import MaskedLanguageModelling
from electra.objective.propose import Frequencies, MaskedNetwork, Proposer, TwoTowerNetwork
from electra.objective.replace_mlm import ReplaceMLM
from electra.objective.rtd import ReplacedTokenDetection

Counts = Callable[[], Tensor]
"""How often each token occurs in the training text; asked only where something needs it."""


def build_objective(config: Config, specials: Specials, *, counts: Counts | None = None) -> Objective:
    """The configured objective over a vocabulary with these special tokens."""
    special = (specials.cls, specials.sep, specials.mask)
    if config.objective.name == "mlm":
        return MaskedLanguageModelling(
            weights=config.objective, masking=config.masking, special=special, mask_id=specials.mask
        )
    proposer = build_proposer(config, specials, counts)
    if config.objective.name == "electric":
        assert isinstance(proposer, TwoTowerNetwork), "refused by the configuration's check"
        return Electric(weights=config.objective, masking=config.masking, special=special, proposer=proposer)
    if config.objective.name == "replace-mlm":
        return ReplaceMLM(weights=config.objective, masking=config.masking, special=special, proposer=proposer)
    if config.objective.name == "all-tokens-mlm":
        return AllTokensMLM(weights=config.objective, masking=config.masking, special=special, proposer=proposer)
    rtd = ReplacedTokenDetection(
        weights=config.objective,
        masking=config.masking,
        special=special,
        proposer=Frozen(proposer=proposer) if config.train.algorithm == "two-stage" else proposer,
        chosen_only=config.objective.name == "rtd-15",
    )
    if config.train.algorithm == "adversarial":
        return Adversarial(rtd=rtd, generator=config.generator)
    return rtd


def build_stages(config: Config, specials: Specials, *, counts: Counts | None = None) -> tuple[Objective, ...]:
    """The objectives that a run is trained by, one after another; the last is `build_objective`'s."""
    last = build_objective(config, specials, counts=counts)
    if config.train.algorithm != "two-stage":
        return (last,)
    proposer = build_proposer(config, specials, counts)
    return GeneratorOnly(weights=config.objective, proposer=proposer, next=last), last


def build_proposer(config: Config, specials: Specials, counts: Counts | None) -> Proposer:
    """What proposes replacements."""
    generator = config.generator
    if generator.kind == "transformer":
        return MaskedNetwork(masking=config.masking, generator=generator, mask_id=specials.mask)
    if generator.kind == "two-tower":
        return TwoTowerNetwork(generator=generator)
    if generator.kind == "uniform":
        weights = torch.ones(config.model.vocab_size)
    elif counts is None:
        raise ConfigError("generator.kind", "unigram needs the frequencies of the training text")
    else:
        weights = counts()
    weights = weights.clone()
    weights[[specials.pad, specials.cls, specials.sep, specials.mask]] = 0
    return Frequencies.of(weights, generator)
