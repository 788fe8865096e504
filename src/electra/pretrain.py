"""Pre-training, put together: config and prepared data in, a run folder out. Running it again resumes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from electra import hardware
from electra.batches.kept import describe, warnings
from electra.batches.layout import Specials, held_out_rows, separator_of
from electra.batches.loader import Batch, Stream
from electra.batches.order import Cursor
from electra.batches.source import Source, StepRows
from electra.checkpoint import folder, store
from electra.checkpoint.folder import as_begun, held, note_execution, open_run, storage, verify_metrics
from electra.checkpoint.lengthening import explain, lengthenings, noted_folder, position_of
from electra.checkpoint.saver import Saver
from electra.checkpoint.tensors import all_rows
from electra.config.schema import Config
from electra.interop.continuation import Start
from electra.model.cost import parameters
from electra.model.electra import build_model
from electra.objective.registry import Resources
from electra.progress import say
from electra.shards.dataset import Prepared
from electra.shards.verification import Background, trained_on_damaged
from electra.tracking.telemetry import Telemetry, telemetry
from electra.train.assembly import assembled
from electra.train.clock import run_clock
from electra.train.evaluate import Sample, evaluate, readable
from electra.train.execution import Execution, make_stepper
from electra.train.guard import check_held_out, discriminator_warning
from electra.train.interrupt import Stop, stop_on_signals
from electra.train.loop import Position, train
from electra.train.memory import advice
from electra.train.meter import Line, Meter, Yardstick
from electra.train.optim import scales
from electra.train.parallel import World
from electra.train.schedule import step_rows
from electra.train.sharding import ShardedMaster, plan_sharding
from electra.train.stages import Stage, StageWeights, plan_stages, stage_until, stages_after, trained_names
from electra.train.state import Master
from electra.train.trial import Trial, measure

Tensors = dict[str, dict[str, Tensor]]
Done = TypeVar("Done")
HELD_OUT_SEED = 20200323  # the same held-out sequences and masks for every run, whatever its seed
DIVERGED = "diverged"  # the folder for the state of a run beyond help
START_COUNTS = 1 << 24  # tokens whose frequencies heads start from: a start need not be exact


def pretrain(
    config: Config,
    *,
    data: Path,
    out: Path,
    start: Start | None = None,
    began: float | None = None,
    lengthen: bool = False,
) -> Path:
    """Train in `out` to the end of the budget, from where it stands; the run folder. A new run begins with `start`.

    A time budget counts from `began` on, by `time.monotonic`: from when the command started, or else from now. With
    `lengthen`, the run in `out` may get more steps or minutes than it began with.
    """
    began = time.monotonic() if began is None else began
    with assembled(as_begun(out, config), data=data) as parts, ExitStack() as stack:
        config, prepared, execution, world, first = parts
        begun = folder.read_config(out) if lengthen else config

        def begin() -> None:
            with storage(out):
                if start is not None:
                    start.place(out, prepared.fingerprint, prepared.folder)
                stack.enter_context(held(out))
                longer = lengthenings(out, begun, config) if lengthen else None
                notes = {"data_folder": noted_folder(out, prepared.folder), **(start.facts if start else {})}
                open_run(out, config, prepared, execution=execution.facts(world), notes=notes, lengthened=longer)

        world.by_leader(begin)
        verifying = Background(prepared.sums) if first and not prepared.verified else None
        if verifying is not None:
            stack.callback(verifying.close)
        run = _Run(config, prepared, out, execution=execution, world=world, verifying=verifying)
        return run.advised(lambda: run.go(began, begun))


def dry_run(config: Config, *, data: Path, out: Path) -> tuple[Config, Trial]:
    """What a run in `out` would take: everything is built and two steps are done, but nothing is written there."""
    with assembled(as_begun(out, config), data=data) as (config, prepared, execution, world, _):
        run = _Run(config, prepared, out, execution=execution, world=world, verifying=None)
        return config, run.advised(run.trial)


class _Run:
    """The parts of one run and the functions that the loop is given."""

    def __init__(
        self,
        config: Config,
        prepared: Prepared,
        out: Path,
        *,
        execution: Execution,
        world: World,
        verifying: Background | None,
    ) -> None:
        self.config, self.out, self.world, self.verifying = config, out, world, verifying
        self.execution, self.device, device = execution, execution.device, execution.device
        tokenizer = prepared.tokenizer()
        self.token_names = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
        self.spaced = tokenizer.tokens_hold_spaces
        specials = Specials.of(tokenizer)
        self.separator = separator_of(config.data, specials)
        self.train_split, some = prepared.train, partial(self._frequencies, START_COUNTS)
        self.model = build_model(
            config, ops=execution.ops, dtype=execution.dtype, recompute=execution.recompute, frequencies=some
        )
        self.sharding = plan_sharding(self.model, world=world, unit=execution.unit) if execution.sharded else None
        self.progress = torch.zeros((), dtype=torch.float64, device=device)
        self.source = Source(
            prepared.train,
            config.data,
            specials,
            seed=config.seed,
            batch_size=config.train.batch_size,
            device=device,
            share=world.share,
        )
        # What only begins by frequencies, or weighs by them, takes those of a part of the text.
        drawn = partial(self._frequencies, None) if config.masking.rare or config.generator.kind == "unigram" else some
        resources = Resources(specials, execution.ops, drawn, device, self.progress, self.source.copies)
        self.stages = plan_stages(config, resources)
        self.peak_flops = hardware.peak_flops(device, self.execution.dtype)
        held_out = Stream(prepared.held_out, held_out_rows(config.data), specials, seed=HELD_OUT_SEED, of="held-out")
        count = min(config.evaluate.sequences, held_out.epoch(0).layout.count)
        self.held_out = torch.from_numpy(held_out.take(Cursor(), count)[0])
        self.saver = Saver(out, keep=config.checkpoint.keep)
        self.telemetry: Telemetry | None = None
        self.elapsed: Callable[[], float] = lambda: 0.0
        self.free_bytes: int | None = None

    def _frequencies(self, most: int | None) -> Tensor:
        """How often each token occurs in the training text, or in about `most` tokens of it."""
        return torch.from_numpy(self.train_split.counts(most=most))

    def advised(self, act: Callable[[], Done]) -> Done:
        """What `act` gives; a step that does not fit into the memory ends with a setting that does."""
        with advice(self.config, self.execution, lambda: self.free_bytes):
            return act()

    def trial(self) -> Trial:
        """A step and an evaluation, measured; nothing is written."""
        self._enter(self.stages[0], Position(), None)
        some = self.held_out[: self.execution.micro_batch]
        check = partial(self._evaluated, [some.to(self.device)])
        with closing(self.source.batches(0, Cursor(), rows_at=lambda step: self.source.last)) as batches:
            trial = measure(self.stepper, batches, check, share=len(some) / len(self.held_out))
        return replace(trial, parameters=parameters(self.config).total, memory_bytes=hardware.memory_bytes(self.device))

    def go(self, began: float, begun: Config) -> Path:
        """Train from where the run stands; `begun` is the config that it had before."""
        position, tensors = self._resume()
        self.began = self.last_saved = position.step
        if position.step and position.step == position.total_steps:
            if self.world.leads:
                say(f"{self.out}: finished at step {position.step}; nothing to do")
            return self.out
        if position.step and self.world.leads and (meaning := explain(position, begun, self.config)):
            say(meaning)
        self.world.by_leader(partial(self._note_execution, position.step))
        with ExitStack() as stack:
            if self.world.leads:  # the others' clocks decide nothing
                with storage(self.out):
                    clock = run_clock(self.out, began=began, saved_s=position.elapsed_s)
                    self.elapsed = stack.enter_context(clock)
                self.telemetry = stack.enter_context(telemetry(self.out, self.config, position))
                stack.callback(self.saver.close)
                self._announce(position)
            stop = stack.enter_context(stop_on_signals())
            for stage in stages_after(self.stages, position.step):
                self._enter(stage, position, tensors)
                position, tensors = self._train(position, stop), None
                if not stage.done(position) or (stage.left and self.world.any(bool(stop))):
                    raise stop.at(position.step)
                self.weights.release()
        return self.out

    def _announce(self, position: Position) -> None:
        """Say where the run stands, and what its rows keep of the text."""
        data = self.source.short if self._own_rows(position.step).short else self.source.whole
        layout = self.source.stream(data).epoch(position.cursor.epoch).layout
        beginning = f"resuming at step {position.step}" if position.step else "starting"
        say(f"{beginning} on {self.device}; the {data.layout} layout {describe(layout, data)}")
        for warning in warnings(layout, self.train_split, data):
            say(f"warning: {warning}")

    def _enter(self, stage: Stage, position: Position, tensors: Tensors | None) -> None:
        """Make the model and everything around it ready for a stage, at its start or in the middle of it."""
        if stage.title and self.world.leads:
            say(f"step {position.step}: {stage.title}")
        if position.step == stage.start:
            stage.begin(self.model)
        self.stage = stage
        config = self.config
        self.weights = StageWeights(
            self.model,
            stage,
            compute=self.execution.dtype,
            device=self.device,
            scale=scales(config.optim, config.generator),
            ema=bool(config.optim.ema),
            make_master=partial(ShardedMaster, sharding=self.sharding) if self.sharding else Master,
        )
        if tensors is not None and position.step != stage.start:
            self.weights.master.load(tensors)
        self.stepper = make_stepper(
            self.model,
            self.weights.master,
            stage.objective,
            config,
            self.execution,
            world=self.world,
            separator=self.separator,
            progress=self.progress,
            like=self.held_out[: self.execution.micro_batch].to(self.device),
        )
        self.free_bytes = hardware.free_bytes(self.device)

    def _train(self, position: Position, stop: Stop) -> Position:
        """Train to the end of the stage or to a stop; the position reached in the run."""
        yardstick = Yardstick(flops_per_token=self.stage.flops_per_token, peak_flops=self.peak_flops)
        begin = partial(self.source.batches, position.step, position.cursor, length=position.length)
        with closing(begin(rows_at=self._rows_at)) as batches:
            end = train(
                self.stage.inside(position),
                self._ticking(batches, position.step),
                config=self.config,
                stepper=self.stepper,
                meter=Meter(self.stepper, yardstick),
                world=self.world,
                save=self._on_good_data(self._by_leader(self._save, others=self._serve)),
                record=self._by_leader(self._record),
                evaluate=self._by_leader(self._evaluate, others=self._compute_along),
                dump=self._by_leader(self._dump, others=self._serve),
                stop=stop,
                elapsed=self.elapsed,
                first=self.stage.start,
                save_s=lambda: self.saver.took_s,
            )
        self._by_leader(lambda position: self.saver.wait())(end)
        return self.stage.outside(end)

    def _resume(self) -> tuple[Position, Tensors | None]:
        """Where the run stands, and what its checkpoint holds; the model has taken the weights."""
        step = self.world.by_leader(self._last_step)
        fresh = Position(total_steps=None if self.config.train.max_minutes else self.config.train.steps)
        if step is None:
            return fresh, None
        found = store.checkpoint_path(self.out, step)
        named = dict(self.model.named_parameters())
        trained = trained_names(self.model, stage_until(self.stages, step))
        shapes = {name: p.shape for name, p in named.items()}
        groups = (*store.GROUPS, store.EMA) if step and self.config.optim.ema else store.GROUPS
        rows = all_rows if self.sharding is None else self.sharding.rows
        tensors, state = store.load(found, expect=shapes, trained=trained, groups=groups, rows=rows)
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(tensors["model"][name])
        if step == 0:  # imported: its weights, and a whole run before it
            return fresh, None
        facts = folder.read_facts(self.out / folder.FACTS)
        return position_of(state, self.config, facts, where=found / "state.json"), tensors

    def _note_execution(self, step: int) -> None:
        with storage(self.out):
            refuse = self.config.checkpoint.same_kernels
            note_execution(self.out, step=step, execution=self.execution.facts(self.world), refuse=refuse)

    def _last_step(self) -> int | None:
        with storage(self.out):
            store.clean(self.out)
            found = store.latest_for_training(self.out)
            if found is not None:
                verify_metrics(self.out, found)
                store.retain(self.out, found, keep=self.config.checkpoint.keep)
        return None if found is None else store.step_of(found)

    def _by_leader(
        self, act: Callable[..., None], *, others: Callable[[Position], None] = lambda position: None
    ) -> Callable[..., None]:
        """`act` with the run's position, by the leading process only; all wait for it, and end with it if it fails.

        `others` is what the other processes do meanwhile.
        """

        def guarded(position: Position, *arguments: Any) -> None:
            with storage(self.out):
                act(self.stage.outside(position), *arguments)

        def everywhere(position: Position, *arguments: Any) -> None:
            meanwhile = partial(others, self.stage.outside(position))
            self.world.by_leader(partial(guarded, position, *arguments), others=meanwhile)

        return everywhere

    def _on_good_data(self, save: Callable[[Position], None]) -> Callable[[Position], None]:
        """`save`, but not where the data was found damaged meanwhile; the last one waits until all of it was read."""

        def guarded(position: Position) -> None:
            ends = position.step == position.total_steps
            problem = self.verifying.problem(wait=ends) if self.verifying is not None else None
            if self.world.any(problem is not None):
                raise trained_on_damaged(problem, began=self.began, saved=self.last_saved)
            save(position)
            self.last_saved = self.stage.outside(position).step

        return guarded

    def _rows_at(self, step: int) -> StepRows:
        """What rows a step has: by the leading process's clock, where that decides."""
        rows = self._own_rows(step)
        if not self.config.train.max_minutes:
            return rows
        # One number, as each is a broadcast that waits.
        asked = self.world.lead(4 * rows.batch_size + 2 * rows.short + rows.copies) or 0
        return StepRows(bool(asked & 2), asked >> 2, copies=bool(asked & 1))

    def _own_rows(self, step: int) -> StepRows:
        return step_rows(step, data=self.config.data, train=self.config.train, elapsed_s=self.elapsed())

    def _ticking(self, loader: Iterable[Batch], step: int) -> Iterator[Batch]:
        for number, batch in enumerate(loader, start=step):
            if self.telemetry is not None:
                self.telemetry.tick(number)
            yield batch

    def _save(self, position: Position) -> None:
        assert self.telemetry is not None
        with self.weights.master.gathering():
            state = asdict(position) | {"metrics": asdict(self.telemetry.written())}
            self.saver.save(step=position.step, tensors=self.weights.tensors(), state=state, first=self.telemetry.sync)

    def _serve(self, position: Position) -> None:
        """Send the leading process what it saves, where it does not have it all."""
        self.weights.master.serve()

    def _dump(self, position: Position) -> None:
        """Keep what a diverged run came to, for looking at: it stands aside of what a run goes on from."""
        aside = self.out / DIVERGED
        with self.weights.master.gathering():
            store.save(aside, step=position.step, tensors=self.weights.tensors(), state=asdict(position), keep=1)
        say(f"{aside}: the weights, averages and place in the data at step {position.step}")

    def _record(self, position: Position, line: Line) -> None:
        assert self.telemetry is not None
        self.saver.check()
        self.telemetry.record(position, line, warmup=self._warmup(position))

    def _warmup(self, position: Position) -> int:
        """Steps of warm-up in the current stage."""
        total = self.stage.inside(position).total_steps
        return self.config.optim.warmup(None if total is None else total - self.stage.start)

    def _evaluate(self, position: Position) -> None:
        assert self.telemetry is not None
        since = position.step - self.stage.start
        if position.step and not since:  # the stage before has just ended with one
            return
        figures, samples = self._held_out_figures()
        sequences = [readable(sample, self.token_names) for sample in samples]
        self.telemetry.evaluated(position, figures, sequences, time_s=self.elapsed(), spaced=self.spaced)
        if position.step == position.total_steps:
            check_held_out(figures, step=position.step, config=self.config)
        warning = discriminator_warning(figures, objective=self.config.objective.name)
        if warning and since > self._warmup(position):
            say(f"warning: {warning}")

    def _held_out_figures(self) -> tuple[dict[str, float], list[Sample]]:
        return self._evaluated(rows.to(self.device) for rows in self.held_out.split(self.execution.micro_batch))

    def _evaluated(self, batches: Iterable[Tensor]) -> tuple[dict[str, float], list[Sample]]:
        run, objective = self.weights.master.run, self.stage.objective
        with self.weights.master.averaged():
            return run(evaluate, self.model, objective, batches, separator=self.separator)

    def _compute_along(self, position: Position) -> None:
        """Take part in an evaluation, where weights are gathered from all processes."""
        if self.sharding is not None:
            self._held_out_figures()
