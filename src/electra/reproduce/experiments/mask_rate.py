"""The share of tokens chosen for prediction."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

_OBJECTIVES = {"rate": ("ELECTRA", "rtd"), "bert": ("BERT", "mlm")}

EXPERIMENT = Experiment(
    name="mask-rate",
    title="Masking rate",
    question="How many tokens should be chosen for prediction, for ELECTRA and for BERT?",
    source="table 6 (the values used; the paper prints no scores)",
    finding="15 % for small and base; 25 % for large, whose generator was too accurate for 15 %.",
    grid=fixed(
        *(
            Variant(
                name=f"{name}-{percent}",
                title=f"{title}, {percent} %",
                overrides=(f"objective.name={objective}", f"masking.rate={percent / 100}"),
                x=percent,
                line=title,
            )
            for percent in (15, 25, 40, 10, 50)
            for name, (title, objective) in _OBJECTIVES.items()
        )
    ),
    choice=True,
    plot="lines",
    x_label="tokens chosen, percent",
)
