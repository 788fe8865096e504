"""The table of objectives: a config value in, the objective out."""

from __future__ import annotations

from collections.abc import Callable

from electra.batches.layout import Specials
from electra.config.schema import Config
from electra.objective.base import Objective
from electra.objective.mlm import MaskedLanguageModelling
from electra.objective.rtd import ReplacedTokenDetection

OBJECTIVES: dict[str, Callable[..., Objective]] = {"rtd": ReplacedTokenDetection, "mlm": MaskedLanguageModelling}


def build_objective(config: Config, specials: Specials) -> Objective:
    """The configured objective over a vocabulary with these special tokens."""
    return OBJECTIVES[config.objective.name](
        weights=config.objective,
        masking=config.masking,
        special=(specials.cls, specials.sep, specials.mask),
        mask_id=specials.mask,
    )
