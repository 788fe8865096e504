"""The ten GLUE tasks as a table."""

from __future__ import annotations

from electra.errors import ConfigError, suggest
from electra.tasks.task import Task

_BINARY = ("0", "1")
_TWO_WAY = ("entailment", "not_entailment")
_THREE_WAY = ("contradiction", "entailment", "neutral")  # the order of the released ELECTRA code

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="cola",
            title="CoLA",
            kind="classify",
            labels=_BINARY,
            metrics=("matthews",),
            tests=("test",),
            official_rows={"train": 8551, "dev": 1043, "test": 1063},
        ),
        Task(
            name="sst2",
            title="SST-2",
            kind="classify",
            labels=_BINARY,
            tests=("test",),
            official_rows={"train": 67349, "dev": 872, "test": 1821},
        ),
        Task(
            name="mrpc",
            title="MRPC",
            kind="classify",
            labels=_BINARY,
            metrics=("accuracy", "f1"),
            unordered=True,
            tests=("test",),
            official_rows={"train": 3668, "dev": 408, "test": 1725},
        ),
        Task(
            name="stsb",
            title="STS-B",
            kind="regress",
            metrics=("spearman", "pearson"),
            scale=5.0,
            unordered=True,
            tests=("test",),
            official_rows={"train": 5749, "dev": 1500, "test": 1379},
        ),
        Task(
            name="qqp",
            title="QQP",
            kind="classify",
            labels=_BINARY,
            metrics=("accuracy", "f1"),
            tests=("test",),
            official_rows={"train": 363846, "dev": 40430, "test": 390965},
        ),
        Task(
            name="mnli",
            title="MNLI",
            kind="classify",
            labels=_THREE_WAY,
            splits=("train", "dev", "dev_mismatched"),
            tests=("test", "test_mismatched"),
            official_rows={
                "train": 392702,
                "dev": 9815,
                "dev_mismatched": 9832,
                "test": 9796,
                "test_mismatched": 9847,
            },
        ),
        Task(
            name="qnli",
            title="QNLI",
            kind="classify",
            labels=_TWO_WAY,
            tests=("test",),
            official_rows={"train": 104743, "dev": 5463, "test": 5463},
        ),
        Task(
            name="rte",
            title="RTE",
            kind="classify",
            labels=_TWO_WAY,
            tests=("test",),
            official_rows={"train": 2490, "dev": 277, "test": 3000},
        ),
        Task(
            name="wnli",
            title="WNLI",
            kind="classify",
            labels=_BINARY,
            tests=("test",),
            official_rows={"train": 635, "dev": 71, "test": 146},
        ),
        Task(
            name="ax",
            title="AX",
            kind="classify",
            labels=_THREE_WAY,
            metrics=("matthews",),
            splits=(),
            tests=("test",),
            model_of="mnli",
            official_rows={"test": 1104},
        ),
    )
}


def glue_task(name: str) -> Task:
    """The GLUE task of this name."""
    if name not in TASKS:
        raise ConfigError("task", f"unknown GLUE task '{name}'; known are {' '.join(TASKS)}", fix=suggest(name, TASKS))
    return TASKS[name]
