"""Table 1: small models, scored while they train."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

EXPERIMENT = Experiment(
    name="small-models",
    title="Small models",
    question="How good is a small model from one GPU, and how early?",
    source="table 1",
    finding="ELECTRA-Small beats BERT-Small by 4.8 points at equal compute, and GPT with 1/30 of its compute.",
    grid=fixed(
        Variant(
            name="electra-small",
            title="ELECTRA-Small",
            paper=79.9,
            paper_at=((0.5, 79.0), (0.25, 77.7), (0.125, 76.0), (0.0625, 74.1)),
            note="earlier rows are checkpoints of the one run",
        ),
        Variant(name="bert-small", title="BERT-Small", overrides=("objective.name=mlm",), paper=75.1),
    ),
    preset="small",
    checkpoints=(0.0625, 0.125, 0.25, 0.5, 1.0),
    plot="curves",
    x_label="training FLOPs (the paper's rules)",
    references=(("ELMo", 71.2), ("GPT", 78.8), ("BERT-Base", 82.2), ("ELECTRA-Base", 85.1)),
)
