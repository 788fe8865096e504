"""Tables 2 to 4 and 8: large models, and a quarter of the compute."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

_LONG = 1_750_000 / 400_000
_LARGE = ("masking.rate=0.25", "generator.width=0.25")

EXPERIMENT = Experiment(
    name="large-models",
    title="Large models",
    question="Does the gain last when models and budgets grow?",
    source="table 2 (GLUE dev); SQuAD and the test sets are tables 3, 4 and 8",
    finding="ELECTRA-400K equals RoBERTa with a quarter of its compute; trained as long, it is ahead.",
    grid=fixed(
        Variant(name="electra-400k", title="ELECTRA-400K", overrides=_LARGE, paper=89.0),
        Variant(
            name="bert",
            title="BERT, our own",
            overrides=("objective.name=mlm", "masking.rate=0.15"),
            paper=87.2,
            note="the compute of ELECTRA-400K",
        ),
        Variant(
            name="electra-1.75m",
            title="ELECTRA-1.75M",
            overrides=_LARGE,
            share=_LONG,
            paper=89.5,
            note="1750/400 of the shorter run's steps",
        ),
    ),
    preset="large",
    references=(("BERT-Large", 84.0), ("RoBERTa-100K", 87.9), ("RoBERTa-500K", 88.9), ("XLNet", 89.1)),
)
