"""A configuration's run, fine-tuned and scored at its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from electra.checkpoint.store import checkpoint_path
from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust
from electra.errors import DataError
from electra.evaluate.results import Suite
from electra.evaluate.suite import RESULTS, Plan, open_suite, run_task
from electra.finetune.base import Base, load_base, settings_for
from electra.finetune.glue import find_tasks, has_split
from electra.finetune.glue_tasks import TASKS
from electra.finetune.jobs import Job, glue_job, table_job
from electra.reproduce import passages
from electra.reproduce.experiment import Experiment
from electra.reproduce.plan import Planned, Point, seeds_of
from electra.reproduce.scale import Scale

TASK, SCORES = "task", "scores"


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """How the runs of an experiment are scored."""

    experiment: Experiment
    scale: Scale
    out: Path
    glue: Path | None
    _jobs: dict[tuple[str, FinetuneConfig], Job] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        return seeds_of(self.experiment, self.scale)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks: those of the scale that the GLUE folder holds, or the one made of the corpus."""
        if self.glue is None:
            return (passages.NAME,)
        there = {task.name for task in find_tasks(self.glue) if has_split(task, self.glue, "train")}
        wanted = self.experiment.tasks or self.scale.tasks
        found = tuple(name for name in wanted if name in there)
        if not found:
            raise DataError(self.glue, f"holds none of {', '.join(wanted)}", fix="another folder, or no --glue")
        return found

    def folder(self, planned: Planned, point: Point) -> Path:
        """Where the scores of a checkpoint are."""
        return self.out / SCORES / planned.name / (f"step-{point.step}" if point.step else "last")

    def missing(self, planned: Planned) -> int:
        """How many fine-tuning runs a configuration still lacks."""
        return sum(self._missing(open_scores(self.folder(planned, point))) for point in planned.points)

    def wanted(self, planned: Planned) -> int:
        """How many fine-tuning runs a configuration has in all."""
        return len(planned.points) * len(self.tasks) * len(self.seeds)

    def _missing(self, suite: Suite) -> int:
        there = {(result.task, run.seed) for result in suite.results for run in result.seeds}
        return sum((task, seed) not in there for task in self.tasks for seed in self.seeds)

    def score(self, planned: Planned, *, run: Path) -> None:
        """Fine-tune from every checkpoint that is to be scored, as far as that is not done."""
        for point in planned.points:
            folder = self.folder(planned, point)
            if not self._missing(open_scores(folder)):
                continue
            base = load_base(checkpoint_path(run, point.step) if point.step else run)
            base = replace(base, name=planned.name)
            for name, config in self._settings(base):
                if (name, config) not in self._jobs:
                    self._jobs[name, config] = self._job(name, base, config)
                job = self._jobs[name, config]
                plan = Plan(config=config, seeds=self.seeds, save=False)
                run_task(base, job, plan=plan, out=folder, folder=folder / name)

    def _settings(self, base: Base) -> Iterator[tuple[str, FinetuneConfig]]:
        for name in self.tasks:
            kind = TASKS[name].kind if name in TASKS else "classify"
            yield name, adjust(settings_for(base, name, kind=kind), overrides=self.scale.finetune)

    def _job(self, name: str, base: Base, config: FinetuneConfig) -> Job:
        if self.glue is not None:
            job = glue_job(TASKS[name], self.glue, tokenizer=base.tokenizer, config=config)
            parts = {split: part for split, part in job.parts.items() if part.judge is not None}
            return replace(job, parts=parts, tests={})  # unlabelled sets are not asked about here
        files = {split: self.out / TASK / f"{split}.jsonl" for split in ("train", "dev")}
        job = table_job(
            name,
            files,
            kind="classify",
            text=passages.FIRST,
            pair=passages.SECOND,
            label=passages.LABEL,
            tokenizer=base.tokenizer,
            config=config,
        )
        return replace(job, task=replace(job.task, title=passages.TITLE))


def open_scores(folder: Path) -> Suite:
    """The scores in a folder, none where it is not there."""
    return open_suite(folder) if (folder / RESULTS).is_file() else Suite()
