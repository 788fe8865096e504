"""An experiment at a scale: every configuration whole, with the steps that its budget buys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from electra.config.load import load
from electra.config.schema import Config, TrainConfig
from electra.errors import ConfigError, suggest
from electra.model.cost import train_flops
from electra.reproduce.experiment import Budget, Experiment, Variant
from electra.reproduce.scale import CHOICE_SEEDS, REPORT_SEEDS, Scale

LOG_LINES, SAVES = 100, 8  # of a run, about
PAPER_ROWS = ("data.layout=paper-official", "data.single_segment=0.1", "data.short=0.05")
"""The paper's own sequences: every experiment compares with its figures, and with runs of ours from before."""
_WARMUP, _WARMUP_SHARE = "optim.warmup_steps", "optim.warmup_share"
_HARDLY = 0.02  # of a run: what begins no longer ago is not scored
_DECIDED = ("train.steps", "train.max_minutes", "checkpoint.every", "checkpoint.keep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A checkpoint to score: after which share of the run, at which step (0: the last, wherever that is)."""

    share: float
    step: int
    paper: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A variant ready to run."""

    variant: Variant
    config: Config
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        return self.variant.name


def plan(
    experiment: Experiment,
    scale: Scale,
    *,
    vocab_size: int | None = None,
    overrides: Sequence[str] = (),
    budget: Budget | None = None,
    only: Iterable[str] = (),
) -> list[Planned]:
    """The variants to run, at equal budgets; `overrides` hold for all of them, a variant's own over these.

    Of more variants than fit into the scale's time, the first are taken, unless `only` names others.
    """
    maker = _Maker(experiment, scale, vocab_size=vocab_size, overrides=tuple(overrides), budget=budget)
    return [maker.planned(variant) for variant in _chosen(maker.variants, tuple(only), scale)]


def left_out(experiment: Experiment, scale: Scale, *, overrides: Sequence[str] = ()) -> list[str]:
    """Names of the variants that do not fit into the scale's time."""
    variants = _Maker(experiment, scale, vocab_size=None, overrides=tuple(overrides), budget=None).variants
    return [variant.name for variant in variants[scale.fits or len(variants) :]]


def seeds_of(experiment: Experiment, scale: Scale) -> tuple[int, ...]:
    """Fine-tuning seeds: some for choices, others for what is reported."""
    return tuple((CHOICE_SEEDS if experiment.choice else REPORT_SEEDS)[: scale.seeds])


def _chosen(variants: Sequence[Variant], only: Sequence[str], scale: Scale) -> list[Variant]:
    known = {variant.name: variant for variant in variants}
    for name in only:
        if name not in known:
            hint = suggest(name, known) or f"one of: {', '.join(known)}"
            raise ConfigError("--only", f"{name!r} is not a configuration of this experiment", fix=hint)
    if only:
        return [variant for variant in variants if variant.name in only]
    return list(variants[: scale.fits or len(variants)])


class _Maker:
    """Puts presets, a scale, a variant and a budget together."""

    def __init__(
        self,
        experiment: Experiment,
        scale: Scale,
        *,
        vocab_size: int | None,
        overrides: tuple[str, ...],
        budget: Budget | None,
    ) -> None:
        self.experiment, self.scale, self.overrides = experiment, scale, overrides
        self.vocab = () if vocab_size is None else (f"model.vocab_size={vocab_size}",)
        self.budget = budget or experiment.budget
        if self.budget == "minutes" and experiment.checkpoints != (1.0,):
            reason = f"{experiment.name} scores checkpoints of a run, and minutes do not say which"
            raise ConfigError("--budget", reason, fix="flops or steps")
        if self.budget == "minutes" and not scale.minutes:
            raise ConfigError("--budget", f"scale {scale.name} has no minutes", fix="flops or steps")
        for key in map(_key, overrides):
            if key in _DECIDED:
                raise ConfigError(key, "the budget of the experiment decides it", fix="--scale, --tokens or --budget")
        base = self._load(None, steps=None)
        self.variants = experiment.grid(base)
        self.steps = experiment.paper_steps or base.train.steps
        if scale.tokens:
            self.steps = max(1, scale.tokens // (base.train.batch_size * base.data.length))
            self._raise_to(self.steps)

    def planned(self, variant: Variant) -> Planned:
        steps = self._steps(variant)
        config = self._load(variant, steps=steps)
        if self.budget == "minutes":
            config = replace(config, train=replace(config.train, max_minutes=self.scale.minutes * variant.share))
        every = config.checkpoint.every
        points = [
            Point(
                share=share,
                step=0 if share == 1.0 else max(1, round(steps * share / every)) * every,
                paper=variant.paper_score(share),
            )
            for share in self.experiment.checkpoints
            if share == 1.0 or self._worth_scoring(config.train, config.data.length, share)
        ]
        return Planned(variant=variant, config=config, points=tuple(points))

    def _worth_scoring(self, train: TrainConfig, length: int, share: float) -> bool:
        """Whether a checkpoint's network has begun to learn, and saw as many tokens as the scale asks for."""
        tokens = share * train.steps * train.batch_size * length
        return share - _before(train) > _HARDLY and tokens >= self.scale.scored_from

    def _raise_to(self, least: int) -> None:
        """Give the first configuration so many steps that its budget buys the most expensive one `least`."""
        while (fewest := min(self._steps(variant) for variant in self.variants)) < least:
            self.steps = max(self.steps + 1, -(-self.steps * least // fewest))

    def _steps(self, variant: Variant) -> int:
        whole = max(1, round(self.steps * variant.share))
        if self.budget != "flops":
            return whole
        named = variant.like or self.variants[0].name
        reference = next(other for other in self.variants if other.name == named)
        if reference.name == variant.name:
            return whole
        budget = _cost(self._load(reference, steps=self.steps))(self.steps) * variant.share
        return steps_for(budget, cost=_cost(self._load(variant, steps=self.steps)))

    def _load(self, variant: Variant | None, *, steps: int | None) -> Config:
        preset = self.scale.preset or self.experiment.preset
        changes = [*PAPER_ROWS, *self.scale.overrides, *self.vocab]
        if steps is not None:
            changes += self._lengths(steps)
        changes = merged([*changes, *self.overrides, *(variant.overrides if variant else ())])
        if steps is not None and self.scale.warmup and not {_WARMUP, _WARMUP_SHARE} & set(map(_key, changes)):
            stage = min(load(preset, overrides=[*changes, f"{_WARMUP}=0"]).train.stage_steps)
            changes.append(f"{_WARMUP}={int(stage * self.scale.warmup)}")
            if self.budget == "minutes":  # which may buy fewer steps
                changes.append(f"{_WARMUP_SHARE}={self.scale.warmup}")
        return load(preset, overrides=changes)

    def _lengths(self, steps: int) -> list[str]:
        """What is counted in steps of the whole run."""
        shares = [share for share in self.experiment.checkpoints if share < 1.0]
        saves = -(-steps // max(1, round(1 / min(shares)))) if shares else -(-steps // SAVES)
        kept = -(-steps // saves) + 1 if shares else 1
        return [
            f"train.steps={steps}",
            f"checkpoint.every={saves}",
            f"checkpoint.keep={kept}",
            f"train.log_every={max(1, steps // LOG_LINES)}",
            f"evaluate.every={max(1, steps // self.scale.evaluations)}",
        ]


def _before(train: TrainConfig) -> float:
    """The share of a run after which the network to be scored begins to learn."""
    return sum(train.stage_steps[:-1]) / train.steps


def steps_for(budget: float, *, cost: Callable[[int], float]) -> int:
    """The number of steps whose cost is nearest to the budget; `cost` grows with the steps."""
    low, high = 1, 2
    while cost(high) < budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle) <= budget else (low, middle)
    return low if budget - cost(low) <= cost(high) - budget else high


def merged(overrides: Iterable[str]) -> list[str]:
    """`key=value` overrides, the last of each key."""
    return list({_key(text): text for text in overrides}.values())


def _key(text: str) -> str:
    return text.partition("=")[0].strip()


def _cost(config: Config) -> Callable[[int], float]:
    def cost(steps: int) -> float:
        return train_flops(replace(config, train=replace(config.train, steps=steps))).paper

    return cost
