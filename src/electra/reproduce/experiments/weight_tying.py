"""Weight tying (section 3.2): what generator and discriminator share."""

from __future__ import annotations

from electra.reproduce.experiment import Experiment, Variant, fixed

_SAME_SIZE = ("generator.width=1", "generator.depth=1")

EXPERIMENT = Experiment(
    name="weight-tying",
    title="Weight tying",
    question="Should a generator of the discriminator's size share its weights?",
    source="section 3.2, weight sharing",
    finding="Sharing token embeddings gives most of the gain; sharing everything adds 0.1 and forces equal sizes.",
    grid=fixed(
        Variant(
            name="embeddings",
            title="embeddings shared",
            overrides=(*_SAME_SIZE, "generator.tying=embeddings"),
            paper=84.3,
        ),
        Variant(name="none", title="nothing shared", overrides=(*_SAME_SIZE, "generator.tying=none"), paper=83.6),
        Variant(name="all", title="all weights shared", overrides=(*_SAME_SIZE, "generator.tying=all"), paper=84.4),
        Variant(
            name="gdes",
            title="gradient-disentangled",
            overrides=(*_SAME_SIZE, "generator.tying=gdes"),
            note="beyond the paper: DeBERTa-V3's sharing",
        ),
    ),
    budget="steps",
    paper_steps=500_000,
)
