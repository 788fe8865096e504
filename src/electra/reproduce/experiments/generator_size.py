"""Figure 3, left: how large the generator should be."""

from __future__ import annotations

from electra.config.schema import Config
from electra.reproduce.experiment import Experiment, Variant

_FRACTIONS = {0.25: "1/4", 1.0: "1/1", 0.5: "1/2", 0.125: "1/8", 0.75: "3/4"}


def _grid(base: Config) -> tuple[Variant, ...]:
    sized = [
        Variant(
            name=f"width-{share:g}",
            title=f"{text} of the width ({round(share * base.model.width)})",
            overrides=(f"generator.width={share}", "generator.depth=1"),
            x=share,
        )
        for share, text in _FRACTIONS.items()
    ]
    unigram = Variant(name="unigram", title="unigram", overrides=("generator.kind=unigram",), x=0.0)
    return (*sized[:2], unigram, *sized[2:])


EXPERIMENT = Experiment(
    name="generator-size",
    title="Generator size",
    question="How large should the generator be, compared with the discriminator?",
    source="figure 3, left (a plot: the paper prints no numbers)",
    finding="Best with generators of 1/4 to 1/2 of the discriminator's width; a stronger one is too hard to tell.",
    grid=_grid,
    budget="steps",
    paper_steps=500_000,
    plot="lines",
    x_label="generator width / discriminator width (0: unigram)",
)
