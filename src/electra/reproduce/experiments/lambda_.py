"""The paper's search for the weight of the discriminator's loss."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

EXPERIMENT = Experiment(
    name="lambda",
    title="Weight of the discriminator's loss",
    question="How much should the discriminator's loss weigh against the generator's?",
    source="section 3.1 (the values searched; the paper prints no scores)",
    finding="50 was chosen from 1, 10, 20, 50 and 100.",
    grid=fixed(
        *(
            Variant(
                name=f"lambda-{weight}",
                title=f"λ = {weight}" + (" (the paper's choice)" if weight == 50 else ""),
                overrides=(f"objective.rtd_weight={weight}",),
                x=weight,
            )
            for weight in (50, 1, 10, 100, 20)
        )
    ),
    budget="steps",
    choice=True,
    plot="lines",
    x_label="λ",
    log_x=True,
)
