"""A configuration's run, fine-tuned and scored at its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from electra.checkpoint.store import checkpoint_path
from electra.config.finetune import FinetuneConfig
from electra.config.load import adjust
from electra.errors import DataError
from electra.finetune.pretrained import Pretrained, load_pretrained, settings_for
from electra.finetune.seed_folder import RESULTS
from electra.finetune.suite import Plan, open_suite, run_task
from electra.finetune.task_results import Suite
from electra.reproduce import passages
from electra.reproduce.experiment import Experiment
from electra.reproduce.plan import Planned, Point, seeds_of
from electra.reproduce.scale import Scale
from electra.tasks.glue_files import find_tasks, has_split
from electra.tasks.glue_tasks import TASKS
from electra.tasks.task_data import TaskData, load_glue, load_table

TASK, SCORES = "task", "scores"


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """How the runs of an experiment are scored."""

    experiment: Experiment
    scale: Scale
    out: Path
    glue: Path | None
    _loaded: dict[tuple[str, FinetuneConfig], TaskData] = field(default_factory=dict)

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
            base = load_pretrained(checkpoint_path(run, point.step) if point.step else run)
            base = replace(base, name=planned.name)
            for name, config in self._settings(base):
                if (name, config) not in self._loaded:
                    self._loaded[name, config] = self._load(name, base, config)
                task_data = self._loaded[name, config]
                plan = Plan(config=config, seeds=self.seeds, save=False)
                run_task(base, task_data, plan=plan, out=folder, folder=folder / name)

    def _settings(self, base: Pretrained) -> Iterator[tuple[str, FinetuneConfig]]:
        for name in self.tasks:
            kind = TASKS[name].kind if name in TASKS else "classify"
            yield name, adjust(settings_for(base, name, kind=kind), overrides=self.scale.finetune)

    def _load(self, name: str, base: Pretrained, config: FinetuneConfig) -> TaskData:
        if self.glue is not None:
            task_data = load_glue(TASKS[name], self.glue, tokenizer=base.tokenizer, config=config)
            labelled = {name: split for name, split in task_data.eval_splits.items() if split.evaluate is not None}
            return replace(task_data, eval_splits=labelled, tests={})  # unlabelled sets are not predicted here
        files = {split: self.out / TASK / f"{split}.jsonl" for split in ("train", "dev")}
        task_data = load_table(
            name,
            files,
            kind="classify",
            text=passages.FIRST,
            pair=passages.SECOND,
            label=passages.LABEL,
            tokenizer=base.tokenizer,
            config=config,
        )
        return replace(task_data, task=replace(task_data.task, title=passages.TITLE))


def open_scores(folder: Path) -> Suite:
    """The scores in a folder, none where it is not there."""
    return open_suite(folder) if (folder / RESULTS).is_file() else Suite()
