"""The paper's scores on GLUE's dev sets with their training FLOPs, and what one answer for every row scores."""

from __future__ import annotations

from electra.report.dots import CostPoint

PAPER: tuple[tuple[str, tuple[CostPoint, ...]], ...] = (
    (
        "ELECTRA, paper",
        (
            CostPoint(label="", flops=8.9e16, value=74.1),
            CostPoint(label="", flops=1.8e17, value=76.0),
            CostPoint(label="", flops=3.6e17, value=77.7),
            CostPoint(label="", flops=7.1e17, value=79.0),
            CostPoint(label="Small", flops=1.4e18, value=79.9),
            CostPoint(label="Base", flops=6.4e19, value=85.1),
            CostPoint(label="400K", flops=7.1e20, value=89.0),
            CostPoint(label="1.75M", flops=3.1e21, value=89.5),
        ),
    ),
    (
        "BERT, paper",
        (
            CostPoint(label="Small", flops=1.4e18, value=75.1),
            CostPoint(label="Base", flops=6.4e19, value=82.2),
            CostPoint(label="Large", flops=1.9e20, value=84.0),
            CostPoint(label="", flops=7.1e20, value=87.2),
        ),
    ),
)
"""Tables 1 and 2. The points without a name: ELECTRA-Small after 6.25, 12.5, 25 and 50 % of its run; BERT, as the
authors trained it again."""

ONE_ANSWER = {
    "cola": 0.0,
    "sst2": 50.9,
    "mrpc": 68.4,
    "stsb": 0.0,
    "qqp": 63.2,
    "mnli": 35.4,
    "qnli": 50.5,
    "rte": 52.7,
}
"""The score on a GLUE dev set of the most frequent label for every row."""
