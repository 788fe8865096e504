"""The table of experiments: one small file each."""

from __future__ import annotations

from electra.errors import ConfigError, suggest
from electra.reproduce.experiment import Experiment
from electra.reproduce.experiments import (
    efficiency,
    generator_size,
    lambda_,
    large_models,
    learning_rate,
    mask_rate,
    model_size,
    negative_results,
    small_models,
    training_algorithms,
    weight_tying,
)

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        efficiency,
        weight_tying,
        generator_size,
        training_algorithms,
        small_models,
        large_models,
        model_size,
        negative_results,
        lambda_,
        learning_rate,
        mask_rate,
    )
}


def experiment(name: str) -> Experiment:
    """The experiment of this name."""
    if name not in EXPERIMENTS:
        hint = suggest(name, EXPERIMENTS) or f"one of: {', '.join(EXPERIMENTS)}"
        raise ConfigError("NAME", f"{name!r} is not an experiment", fix=hint)
    return EXPERIMENTS[name]
