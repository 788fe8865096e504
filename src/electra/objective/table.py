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
from electra.objective.contrastive import Contrastive
from electra.objective.electric import Electric
from electra.objective.generator_only import Frozen, GeneratorOnly
from electra.objective.mlm import MaskedLanguageModelling
from electra.objective.propose import Frequencies, MaskedNetwork, Proposer, TwoTowerNetwork
from electra.objective.rare import RareFirst, rarity
from electra.objective.replace_mlm import ReplaceMLM
from electra.objective.rtd import ReplacedTokenDetection

Counts = Callable[[], Tensor]
"""How often each token occurs in the training text; asked only where something needs it."""


def build_objective(
    config: Config, specials: Specials, *, counts: Counts | None = None, device: torch.device | None = None
) -> Objective:
    """The configured objective over a vocabulary with these special tokens; its tables are put on `device`."""
    special = (specials.cls, specials.sep, specials.mask)
    objective = _evenly(config, specials, special, counts, device)
    if not config.masking.rare:
        return objective
    log_weights_V = rarity(_counted("masking.rare", counts), config.masking.rare).to(device)
    return RareFirst(objective=objective, masking=config.masking, special=special, log_weights_V=log_weights_V)


def _evenly(
    config: Config, specials: Specials, special: tuple[int, ...], counts: Counts | None, device: torch.device | None
) -> Objective:
    """The objective with every token as likely to be chosen."""
    if config.objective.name == "mlm":
        return MaskedLanguageModelling(
            weights=config.objective, masking=config.masking, special=special, mask_id=specials.mask
        )
    proposer = build_proposer(config, specials, counts, device)
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
    return Contrastive(rtd=rtd) if config.objective.contrastive_weight else rtd


def build_stages(
    config: Config, specials: Specials, *, counts: Counts | None = None, device: torch.device | None = None
) -> tuple[Objective, ...]:
    """The objectives that a run is trained by, one after another; the last is `build_objective`'s."""
    last = build_objective(config, specials, counts=counts, device=device)
    if config.train.algorithm != "two-stage":
        return (last,)
    proposer = build_proposer(config, specials, counts, device)
    return GeneratorOnly(weights=config.objective, proposer=proposer, next=last), last


def build_proposer(
    config: Config, specials: Specials, counts: Counts | None, device: torch.device | None = None
) -> Proposer:
    """What proposes replacements."""
    generator = config.generator
    if generator.kind == "transformer":
        return MaskedNetwork(masking=config.masking, generator=generator, mask_id=specials.mask)
    if generator.kind == "two-tower":
        return TwoTowerNetwork(generator=generator)
    even = generator.kind == "uniform"
    weights = torch.ones(config.model.vocab_size) if even else _counted("generator.kind", counts).clone()
    weights[[specials.pad, specials.cls, specials.sep, specials.mask]] = 0
    return Frequencies.of(weights, generator, device=device)


def _counted(key: str, counts: Counts | None) -> Tensor:
    if counts is None:
        raise ConfigError(key, "needs the frequencies of the training text")
    return counts()
