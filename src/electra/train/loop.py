"""The training loop, on one page. Everything it touches comes in as an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from electra.batches.loader import Batch
from electra.batches.order import Cursor
from electra.config.schema import Config
from electra.errors import Diverged, ElectraError
from electra.train.guard import Guard, loss_may_rise
from electra.train.interlude import Interlude
from electra.train.interrupt import Stop
from electra.train.meter import Line, Meter
from electra.train.parallel import World
from electra.train.schedule import TimeBudget, learning_rate
from electra.train.step import Stepper


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a run has come: what a checkpoint's state.json holds."""

    step: int = 0
    cursor: Cursor = Cursor()
    tokens: float = 0.0
    elapsed_s: float = 0.0
    total_steps: int | None = None
    length: int = 0
    """Tokens in a sequence of the last step; 0 before the first one."""


def train(
    position: Position,
    batches: Iterable[Batch],
    *,
    config: Config,
    stepper: Stepper,
    meter: Meter,
    world: World,
    save: Callable[[Position], None],
    record: Callable[[Position, Line], None],
    evaluate: Callable[[Position], None],
    dump: Callable[[Position], None],
    stop: Stop,
    elapsed: Callable[[], float],
    first: int = 0,
    save_s: Callable[[], float] = lambda: 0.0,
) -> Position:
    """Train to the end of the budget or to a stop; the position reached, evaluated and saved.

    The learning rate's schedule begins at step `first`, where the run as a whole may have begun before. A run beyond
    help is handed to `dump` before it ends with `Diverged`. `elapsed` gives the seconds of the run, `save_s` of a save.
    """
    evaluation = Interlude(_dumping(evaluate, dump), config.evaluate, elapsed=elapsed, compiles=True)
    saving = Interlude(save, config.checkpoint, elapsed=elapsed, last_s=save_s)
    budget = TimeBudget(config.train, elapsed=elapsed, interludes=(evaluation, saving))
    guard = Guard(config.guard, may_rise=loss_may_rise(config.train.algorithm, config.objective.name))
    if position.step == first:
        evaluation(position)
        meter.restart()
    for batch in batches:
        total = position.total_steps
        if position.step == total:
            break
        budget.follow(batch.rows.shape)
        step, goal = position.step - first, None if total is None else total - first
        lr = learning_rate(step, optim=config.optim, total=goal)
        stepper.place(step, total=goal)
        stepper(batch.rows, lr)
        position = replace(position, step=position.step + 1, cursor=batch.after, length=batch.length)
        if config.train.max_minutes and world.any(budget.due(position.step)):
            stepper.wait()
            total = world.lead(budget.total(position.step, total))
            position = replace(position, total_steps=total)
        ends = world.any(bool(stop)) or position.step == total
        saves = ends or saving.due(position.step, world)
        evaluates = position.step == total or evaluation.due(position.step, world)
        if saves or evaluates or position.step % config.train.log_every == 0:
            line, tokens = meter.read(lr=lr)
            position = replace(position, tokens=position.tokens + tokens, elapsed_s=elapsed())
            record(position, line)
            _dumping(_check, dump)(position, line, guard, position.step == total)
        if evaluates:
            evaluation(position)
        if saves:
            saving(position)
        if saves or evaluates:
            meter.restart()
        if ends:
            break
    return position


def _check(position: Position, line: Line, guard: Guard, last: bool) -> None:
    guard.check(step=position.step, line=line)
    if last:
        guard.finish(step=position.step)


def _dumping(act: Callable[..., None], dump: Callable[[Position], None]) -> Callable[..., None]:
    """`act` at a position; a run that it finds beyond help is handed to `dump`, on every process, before it ends."""

    def guarded(position: Position, *arguments: object) -> None:
        try:
            act(position, *arguments)
        except ElectraError as error:
            if error.exit_code == Diverged.exit_code:  # by code: processes that do not lead have an error of no class
                dump(position)
            raise

    return guarded
