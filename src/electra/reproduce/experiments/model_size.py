"""Figure 4: the gain by model size."""

from __future__ import annotations

from electra.config.schema import Config
from electra.reproduce.experiment import Experiment, Variant

_FRACTIONS = (1.0, 0.25, 0.5)
_HEAD_UNITS = 64


def _grid(base: Config) -> tuple[Variant, ...]:
    found: list[Variant] = []
    for fraction in _FRACTIONS:
        width = round(base.model.width * fraction)
        size = (
            f"model.width={width}",
            f"model.heads={max(1, width // _HEAD_UNITS)}",
            f"model.ffn={4 * width}",
            f"model.embedding={min(base.model.embedding, width)}",
        )
        electra = Variant(
            name=f"electra-{width}",
            title=f"ELECTRA, width {width}",
            overrides=(*size, "generator.width=0.25"),
            like=f"electra-{width}",
            x=width,
            line="ELECTRA",
        )
        bert = Variant(
            name=f"bert-{width}",
            title=f"BERT, width {width}",
            overrides=(*size, "objective.name=mlm"),
            like=electra.name,
            x=width,
            line="BERT",
            note=f"the compute of {electra.title}",
        )
        found += [electra, bert]
    return tuple(found)


EXPERIMENT = Experiment(
    name="model-size",
    title="Model size",
    question="Is the gain over BERT larger for smaller models?",
    source="figure 4 (a plot: the paper prints no numbers)",
    finding="Yes: the smaller the model, the larger ELECTRA's lead.",
    grid=_grid,
    plot="lines",
    x_label="width",
)
