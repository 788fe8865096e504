"""How large an experiment is made, from a test of the machinery in minutes to the paper's own size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from electra.errors import ConfigError, suggest

CHOICE_SEEDS = range(5)
REPORT_SEEDS = range(10, 15)
"""Fine-tuning seeds: settings are chosen on the first, results reported on the second: no choice flatters itself."""
_GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")  # the paper's average is over these


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Sizes, budgets and fine-tuning of every configuration of an experiment."""

    name: str
    title: str
    preset: str = ""
    """The network that configurations change; none means the experiment's own, as in the paper."""
    overrides: tuple[str, ...] = ()
    tokens: int = 0
    """Tokens that each configuration trains on at least, padding included; 0 means the paper's number of steps."""
    minutes: float = 0.0
    """Training time of each configuration, where equal time is asked for."""
    warmup: float = 0.0
    """Share of a stage's steps over which the learning rate rises; 0 means the preset's steps."""
    evaluations: int = 10
    """Held-out evaluations of a run."""
    scored_from: int = 0
    """Tokens after which a checkpoint before the last is worth fine-tuning."""
    tasks: tuple[str, ...] = ()
    """GLUE tasks to fine-tune on, as far as they are at hand."""
    seeds: int = 1
    finetune: tuple[str, ...] = ()
    """Fine-tuning settings that differ from the paper's."""
    task_rows: int = 512
    """Training rows of the task that is made of the corpus where no GLUE folder is given."""
    together: int = 1
    """Configurations side by side on a GPU."""
    fits: int = 0
    """How many configurations fit into the time that the scale is named for; 0 means any number."""
    finetune_time: float = 0.3
    """About the share of a configuration's time that fine-tuning takes; only the progress bar asks."""
    caution: str = ""
    """What must stand next to the scores."""


SMOKE = "cpu-smoke"
"""The scale whose scores mean nothing."""

SCALES: dict[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            name=SMOKE,
            title="2 layers x 64, 40 steps: whether everything runs, in minutes on two cores",
            preset="tiny",
            overrides=(
                "model.layers=2",
                "model.width=64",
                "model.heads=1",
                "model.ffn=256",
                "model.embedding=32",
                "train.batch_size=16",
                "evaluate.sequences=32",
            ),
            tokens=40 * 16 * 64,
            minutes=0.25,
            warmup=0.1,
            evaluations=2,
            tasks=("rte",),
            seeds=1,
            finetune=("epochs=1", "length=64", "batch_size=16", "max_train_rows=192"),
            task_rows=192,
            finetune_time=0.5,
            caution="A test of the machinery: after a few dozen steps the scores mean nothing.",
        ),
        Scale(
            name="cpu",
            title="tiny (4 layers x 128), 2 M tokens a configuration: hours on a laptop",
            preset="tiny",
            overrides=("evaluate.sequences=256",),
            tokens=1000 * 32 * 64,
            minutes=10,
            warmup=0.1,
            tasks=("cola", "mrpc", "stsb", "rte"),
            seeds=3,
            finetune=("length=64", "max_train_rows=2000"),
            task_rows=2000,
            caution=(
                "2 million tokens: below some 160 million a generator knows little more than word frequencies, so the "
                "order of the rows says little about the paper's."
            ),
        ),
        Scale(
            name="gpu-10min",
            title="half of small (6 layers x 256), 256 M tokens a configuration: ten minutes on one H200",
            preset="small",
            overrides=(
                "model.layers=6",
                "model.positions=128",
                "evaluate.sequences=512",
                "objective.base_rate_start=true",
            ),
            tokens=256_000_000,
            minutes=1.2,
            warmup=0.25,
            tasks=_GLUE,
            seeds=3,
            task_rows=6000,
            together=3,
            fits=6,
            caution="Half of small, far from the paper's 16.4 billion tokens: read differences with the spread.",
        ),
        Scale(
            name="gpu-1h",
            title="small (12 layers x 256), 400 M tokens a configuration: about an hour on one H200",
            preset="small",
            overrides=("evaluate.sequences=1024",),
            tokens=400_015_360,
            minutes=5,
            warmup=0.5,
            scored_from=200_000_000,
            tasks=_GLUE,
            seeds=5,
            task_rows=10_000,
            together=3,
            fits=8,
            caution="Small after a small part of the paper's 16.4 billion tokens: read differences with the spread.",
        ),
        Scale(
            name="paper",
            title="the paper's sizes, batches and steps: days to weeks",
            tasks=_GLUE,
            seeds=5,
            task_rows=10_000,
            finetune_time=0.05,
        ),
    )
}


def scale_named(name: str) -> Scale:
    """The scale of this name."""
    if name not in SCALES:
        hint = suggest(name, SCALES) or f"one of: {', '.join(SCALES)}"
        raise ConfigError("--scale", f"{name!r} is not a scale", fix=hint)
    return SCALES[name]


_ROWS = "max_train_rows"


def changed_scale(
    scale: Scale,
    *,
    tokens: int | None = None,
    seeds: int | None = None,
    tasks: Sequence[str] = (),
    rows: int | None = None,
) -> Scale:
    """The scale with what is not None changed."""
    if seeds is not None and seeds > len(REPORT_SEEDS):
        reason = f"{seeds} is more than the {len(REPORT_SEEDS)} that choices and reports have each"
        raise ConfigError("--seeds", reason, fix=f"--seeds {len(REPORT_SEEDS)} at most")
    return replace(
        scale,
        tokens=scale.tokens if tokens is None else tokens,
        seeds=scale.seeds if seeds is None else seeds,
        tasks=tuple(tasks) or scale.tasks,
        finetune=scale.finetune if rows is None else (*_others(scale), f"{_ROWS}={rows}"),
    )


def changes(scale: Scale) -> list[str]:
    """What differs from the scale of that name, as it was given on the command line."""
    usual = SCALES[scale.name]
    found = [f"--tokens {scale.tokens}"] if scale.tokens != usual.tokens else []
    found += [f"--seeds {scale.seeds}"] if scale.seeds != usual.seeds else []
    found += [f"--tasks {','.join(scale.tasks)}"] if scale.tasks != usual.tasks else []
    return [*found, *([f"--rows {scale.finetune[-1].partition('=')[2]}"] if scale.finetune != usual.finetune else [])]


def _others(scale: Scale) -> tuple[str, ...]:
    return tuple(text for text in scale.finetune if not text.startswith(f"{_ROWS}="))
