"""Appendix: ideas that did not help."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

EXPERIMENT = Experiment(
    name="negative-results",
    title="Negative results",
    question="Do harder replacements, rarer masks or a sentence-level loss help?",
    source="appendix, negative results (in words: the paper prints no numbers)",
    finding="None of them helped; the sentence-level loss lowered GLUE and SQuAD scores.",
    grid=fixed(
        Variant(name="electra", title="ELECTRA"),
        Variant(
            name="rare-masking",
            title="rare tokens masked more",
            overrides=("masking.rare=0.5", "masking.policy=without_replacement"),
            note="the paper does not say how strongly; here by frequency to the power of -0.5, each position once",
        ),
        Variant(
            name="temperature",
            title="temperature 2",
            overrides=("generator.temperature=2",),
            note="the paper does not say how high",
        ),
        Variant(
            name="disallow-correct",
            title="correct token disallowed",
            overrides=("generator.disallow_correct=true",),
        ),
        Variant(
            name="contrastive",
            title="sentence-level loss",
            overrides=("objective.contrastive_weight=1", "objective.contrastive_share=0.2"),
            note="the weight is a choice of ours",
        ),
    ),
    budget="steps",
)
