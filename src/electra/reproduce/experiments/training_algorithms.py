"""Figure 3, right: joint, two-stage and adversarial training over the course of a run."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

EXPERIMENT = Experiment(
    name="training-algorithms",
    title="Training algorithms",
    question="Is it best to train generator and discriminator jointly, in two stages, or as adversaries?",
    source="figure 3, right (a plot: the paper prints no numbers)",
    finding="Joint training is best; adversarial comes next; two stages come last but still beat BERT.",
    grid=fixed(
        Variant(name="joint", title="ELECTRA, joint"),
        Variant(
            name="adversarial",
            title="adversarial (REINFORCE)",
            overrides=("train.algorithm=adversarial",),
            note="the paper's adversarial generator reaches 58 % masked accuracy, the joint one 65 %",
        ),
        Variant(
            name="two-stage",
            title="two stages",
            overrides=("train.algorithm=two-stage", "generator.width=1", "generator.depth=1"),
            note="the first half of the steps trains the generator, whose weights the discriminator starts from",
        ),
        Variant(name="bert", title="BERT", overrides=("objective.name=mlm",)),
        Variant(
            name="two-stage-fresh",
            title="two stages, fresh start",
            overrides=("train.algorithm=two-stage", "train.start_from_generator=false"),
            note="in the paper a discriminator that does not start from the generator may learn nothing",
        ),
    ),
    checkpoints=(0.25, 0.5, 0.75, 1.0),
    plot="curves",
    x_label="training FLOPs (the paper's rules)",
)
