"""What an experiment would run, as text: every configuration in order; nothing is run or written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra import hardware
from electra.config.keys import toml_value
from electra.config.load import diff, load
from electra.config.schema import Config
from electra.model.cost import train_flops
from electra.progress import counted, scaled
from electra.reproduce.execute import DIVERGED, Request, asked, check_claim, count_at_once, finished, without_time
from electra.reproduce.plan import Planned
from electra.reproduce.reuse import find_twin
from electra.reproduce.watch import step_reached

_ELSEWHERE = ("train.steps", "train.max_minutes", "model.vocab_size")  # said in other lines, or the data's


def describe(request: Request, *, together: int | None = None, reuse: Sequence[Path] = ()) -> str:
    """Every configuration with its settings, length, scores and folder; ConfigError where `reproduce` would refuse."""
    check_claim(request)
    planned = request.planned
    settings = [_changed(one.config) for one in planned]
    common = {key: value for key, value in settings[0].items() if all(other.get(key) == value for other in settings)}
    device = hardware.device(planned[0].config.train.device)
    at_once = count_at_once(request, device, together)
    order = "one after another" if at_once == 1 else f"{at_once} at a time"
    lines = [
        f"dry run: {request.experiment.name} at scale {request.scale.name}, alike in {request.budget}; nothing was"
        " written",
        f"  {counted(len(planned), 'configuration')}, {order} on {device.type}, in this order",
        f"  all of them: preset {planned[0].config.preset} {_shown(common)}".rstrip(),
    ]
    for number, (one, its) in enumerate(zip(planned, settings, strict=True), 1):
        own = {key: value for key, value in its.items() if key not in common}
        lines += [
            f"{number}. {one.name}: {one.variant.title}",
            f"   settings  {_shown(own) or 'none of its own'}",
            f"   length    {_length(one.config)}",
            f"   scored    {_scored(request, one)}",
            f"   folder    {request.run(one)}: {_state(request, one, reuse)}",
        ]
    lines += [f"left out: {name} (--only {name} runs it)" for name in without_time(request)]
    return "\n".join(lines)


def _changed(config: Config) -> dict[str, Any]:
    """What differs from the preset, but for what other lines say."""
    return {key: value for key, _, value in diff(load(config.preset), config) if key not in _ELSEWHERE}


def _shown(settings: dict[str, Any]) -> str:
    texts = {key: value if isinstance(value, str) else toml_value(value) for key, value in settings.items()}
    return " ".join(f"{key}={text}" for key, text in texts.items())


def _length(config: Config) -> str:
    """Steps and tokens, padding included, as a budget counts them."""
    train, length = config.train, config.data.length
    tokens = train.steps * train.batch_size * length
    size = f"{train.steps:,} steps of {train.batch_size} x {length} tokens, {scaled(tokens)} in all"
    if train.max_minutes:
        return f"{counted(train.max_minutes, 'minute')}, at most {size}"
    return f"{size}, {train_flops(config).paper:.3g} FLOPs by the paper's rules"


def _scored(request: Request, planned: Planned) -> str:
    scorer = request.scorer
    places = ", ".join(f"step {point.step:,}" if point.step else "the end" for point in planned.points)
    seeds = ", ".join(map(str, scorer.seeds))
    runs = counted(scorer.wanted(planned), "fine-tuning run")
    return f"at {places}, on {', '.join(scorer.tasks)} with seeds {seeds}: {runs}"


def _state(request: Request, planned: Planned, reuse: Sequence[Path]) -> str:
    """How far a configuration is."""
    run = request.run(planned)
    if (run / DIVERGED).is_file():
        return "diverged"
    if finished(request, planned):
        return "finished"
    if not run.exists():
        twin, _ = find_twin(planned, ours=asked(request), scorer=request.scorer, folders=reuse)
        if twin is not None:
            return f"to be taken from {twin.title}, {'with its scores' if twin.scored else 'to be scored'}"
    step = step_reached(run)
    if step >= planned.config.train.steps:
        return f"trained, {counted(request.scorer.missing(planned), 'fine-tuning run')} missing"
    return f"at step {step:,}" if step else "to be run"
