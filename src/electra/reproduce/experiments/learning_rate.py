"""The paper's search for the learning rate, with the same search for BERT."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

_OBJECTIVES = {"electra": ("ELECTRA", "rtd"), "bert": ("BERT", "mlm")}

EXPERIMENT = Experiment(
    name="learning-rate",
    title="Learning rate",
    question="Which learning rate, for ELECTRA and for BERT?",
    source="section 3.1 (the values searched; the paper prints no scores)",
    finding="5e-4 was chosen for small and 2e-4 for base and large, from 1e-4, 2e-4, 3e-4 and 5e-4.",
    grid=fixed(
        *(
            Variant(
                name=f"{name}-{rate}",
                title=f"{title}, {rate}",
                overrides=(f"objective.name={objective}", f"optim.lr={rate}"),
                x=float(rate),
                line=title,
            )
            for rate in ("5e-4", "2e-4", "3e-4", "1e-4")
            for name, (title, objective) in _OBJECTIVES.items()
        )
    ),
    choice=True,
    plot="lines",
    x_label="learning rate",
    log_x=True,
)
