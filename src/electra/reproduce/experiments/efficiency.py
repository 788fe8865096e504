"""Table 5: where the gain comes from."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

EXPERIMENT = Experiment(
    name="efficiency",
    title="Where the gain comes from",
    question="Is it learning from every token, or never showing [MASK], that makes ELECTRA efficient?",
    source="table 5",
    finding="Mostly learning from every token; the mismatch that [MASK] brings costs a little.",
    grid=fixed(
        Variant(name="electra", title="ELECTRA", paper=85.0),
        Variant(name="bert", title="BERT", overrides=("objective.name=mlm",), paper=82.2),
        Variant(
            name="all-tokens-mlm",
            title="All-Tokens MLM",
            overrides=("objective.name=all-tokens-mlm",),
            paper=84.3,
            note="predicts every token from sampled text, with a copy gate",
        ),
        Variant(
            name="replace-mlm",
            title="Replace MLM",
            overrides=("objective.name=replace-mlm",),
            paper=82.4,
            note="predicts the chosen tokens from sampled text in place of [MASK]",
        ),
        Variant(
            name="electra-15",
            title="ELECTRA 15 %",
            overrides=("objective.name=rtd-15",),
            paper=82.4,
            note="detects at the chosen tokens only",
        ),
    ),
)
