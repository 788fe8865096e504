"""Pre-training, put together: config and prepared data in, a run folder out. Running it again resumes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from electra import hardware
from electra.batches.kept import describe, warnings
from electra.batches.layout import Specials, separator_of
from electra.batches.loader import Batch, Loader, Stream
from electra.batches.order import Cursor
from electra.checkpoint import store
from electra.checkpoint.folder import as_begun, held, note_execution, open_run, storage, verify_metrics
from electra.config.schema import Config, DataConfig
from electra.config.validate import validate
from electra.errors import CheckpointError, ConfigError, DataError
from electra.model.cost import parameters
from electra.model.electra import build_model
from electra.objective.registry import Resources
from electra.progress import Bar, progress, say
from electra.records import read_record
from electra.shards.dataset import Prepared, open_data
from electra.shards.verification import Background
from electra.train.clock import run_clock
from electra.train.evaluate import evaluate, readable
from electra.train.execution import Execution, make_stepper, plan_execution
from electra.train.guard import dead_discriminator
from electra.train.interrupt import Stop, stop_on_signals
from electra.train.loop import Position, train
from electra.train.meter import Line, Meter, Yardstick
from electra.train.metrics_file import MetricsWriter, evaluation_line, sample_line, status
from electra.train.optim import make_update, scales
from electra.train.parallel import World, join
from electra.train.stages import Stage, StageWeights, plan_stages, stage_until, stages_after, trained_names

Tensors = dict[str, dict[str, Tensor]]
HELD_OUT_SEED = 20200323  # the same held-out sequences and masks for every run, whatever its seed
DIVERGED = "diverged"  # the folder for the state of a run beyond help
STATE_BYTES = 16  # of a parameter in training: weight, gradient and two averages in fp32
START_COUNTS = 1 << 24  # tokens whose frequencies heads start from: a start need not be exact


def pretrain(config: Config, *, data: Path, out: Path, began: float | None = None) -> Path:
    """Train in `out` to the end of the budget, from where it stands; the run folder.

    A time budget counts from `began` on, by `time.monotonic`: from when the command started, or else from now.
    """
    began = time.monotonic() if began is None else began
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0  # of the processes on this machine
    prepared = open_data(data, verify=first)
    config = _fit_vocabulary(as_begun(out, config), prepared)
    device = hardware.device(config.train.device)
    _require_memory(config, device)
    if config.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if device.type == "cpu":
        hardware.keep_freed_memory()
    else:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with ExitStack() as stack:
        world = join(device, timeout_s=config.train.timeout_s)
        stack.callback(world.close)
        share = world.share(config.train.batch_size)
        execution = plan_execution(config, device, rows=share.stop - share.start)

        def begin() -> None:
            with storage(out):
                stack.enter_context(held(out))
                open_run(out, config, prepared, execution=execution.facts(world))

        world.by_leader(begin)
        verifying = Background(prepared.sums) if first and not prepared.verified else None
        if verifying is not None:
            stack.callback(verifying.close)
        return _Run(config, prepared, out, execution=execution, world=world, verifying=verifying).go(began)


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
        specials = Specials(pad=tokenizer.pad_id, cls=tokenizer.cls_id, sep=tokenizer.sep_id, mask=tokenizer.mask_id)
        self.separator = separator_of(config.data, specials)
        self.share = world.share(config.train.batch_size)
        self.model = build_model(
            config,
            ops=self.execution.ops,
            dtype=self.execution.dtype,
            recompute=self.execution.recompute,
            counts=lambda: _counts(prepared, most=START_COUNTS),
        )
        resources = Resources(specials, self.execution.ops, lambda: _counts(prepared), device)
        self.stages = plan_stages(config, resources)
        self.peak_flops = hardware.peak_flops(device, self.execution.dtype)
        self.train_split = prepared.train
        self.stream = Stream(prepared.train, config.data, specials, seed=config.seed)
        held_out = Stream(prepared.held_out, held_out_rows(config.data), specials, seed=HELD_OUT_SEED)
        count = min(config.evaluate.sequences, held_out.epoch(0).layout.count)
        self.held_out = torch.from_numpy(held_out.take(Cursor(), count)[0])
        self.metrics: MetricsWriter | None = None
        self.bar: Bar | None = None
        self.elapsed: Callable[[], float] = lambda: 0.0

    def go(self, began: float) -> Path:
        position, tensors = self._resume()
        self.began = self.last_saved = position.step
        if position.step and position.step == position.total_steps:
            say(f"{self.out}: finished at step {position.step}; nothing to do")
            return self.out
        self.world.by_leader(partial(self._note_execution, position.step))
        with ExitStack() as stack:
            if self.world.leads:  # the others' clocks decide nothing
                with storage(self.out):
                    clock = run_clock(self.out, began=began, saved_s=position.elapsed_s)
                    self.elapsed = stack.enter_context(clock)
                self.metrics = MetricsWriter(self.out, step=position.step)
                stack.callback(self.metrics.close)
                title = f"pretrain {self.config.preset}"
                self.bar = stack.enter_context(progress(title, position.total_steps, "step", start=position.step))
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
        data, layout = self.config.data, self.stream.epoch(position.cursor.epoch).layout
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
        config, ops = self.config, self.execution.ops
        scale = scales(config.optim, config.generator)
        self.weights = StageWeights(self.model, stage, compute=self.execution.dtype, device=self.device, scale=scale)
        if tensors is not None and position.step != stage.start:
            self.weights.master.load(tensors)
        self.stepper = make_stepper(
            self.model,
            self.weights.master,
            stage.objective,
            make_update(self.weights.master, config.optim, config.generator, ops=ops),
            self.execution,
            world=self.world,
            separator=self.separator,
        )

    def _train(self, position: Position, stop: Stop) -> Position:
        """Train to the end of the stage or to a stop; the position reached in the run."""
        size = self.config.train.batch_size
        yardstick = Yardstick(flops_per_token=self.stage.flops_per_token, peak_flops=self.peak_flops)
        loader = Loader(self.stream, position.cursor, batch_size=size, device=self.device, share=self.share)
        with closing(loader):
            end = train(
                self.stage.inside(position),
                self._ticking(loader, position.step),
                config=self.config,
                stepper=self.stepper,
                meter=Meter(self.stepper, yardstick),
                world=self.world,
                save=self._on_good_data(self._by_leader(self._save)),
                record=self._by_leader(self._record),
                evaluate=self._by_leader(self._evaluate),
                dump=self._by_leader(self._dump),
                stop=stop,
                elapsed=self.elapsed,
                first=self.stage.start,
            )
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
        tensors, state = store.load(found, expect={name: p.shape for name, p in named.items()}, trained=trained)
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(tensors["model"][name])
        if step == 0:  # imported: its weights, and a whole run before it
            return fresh, None
        return read_record(Position, state, whole=True, where=found / "state.json", error=CheckpointError), tensors

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
        return None if found is None else store.step_of(found)

    def _by_leader(self, act: Callable[..., None]) -> Callable[..., None]:
        """`act` with the run's position, by the leading process only; all wait for it, and end with it if it fails."""

        def guarded(position: Position, *arguments: Any) -> None:
            with storage(self.out):
                act(self.stage.outside(position), *arguments)

        def everywhere(*arguments: Any) -> None:
            self.world.by_leader(partial(guarded, *arguments))

        return everywhere

    def _on_good_data(self, save: Callable[[Position], None]) -> Callable[[Position], None]:
        """`save`, but not where the data was found damaged meanwhile; the last one waits until all of it was read."""

        def guarded(position: Position) -> None:
            ends = position.step == position.total_steps
            problem = self.verifying.problem(wait=ends) if self.verifying is not None else None
            if self.world.any(problem is not None):
                reason = "another process found damaged data; its message names the file"
                began = (
                    f"nothing was saved after step {self.began}"
                    if self.last_saved == self.began
                    else (f"the checkpoints after step {self.began} were trained on it: remove them")
                )
                raise DataError(problem or reason, began, fix="restore the file, then run the same command")
            save(position)
            self.last_saved = self.stage.outside(position).step

        return guarded

    def _ticking(self, loader: Iterable[Batch], step: int) -> Iterator[Batch]:
        for number, batch in enumerate(loader, start=step):
            if self.bar is not None:
                self.bar.update(number)
            yield batch

    def _save(self, position: Position) -> None:
        assert self.metrics is not None
        state = asdict(position) | {"metrics": asdict(self.metrics.sync())}
        store.save(
            self.out,
            step=position.step,
            tensors=self.weights.tensors(),
            state=state,
            keep=self.config.checkpoint.keep,
        )

    def _dump(self, position: Position) -> None:
        """Keep what a diverged run came to, for looking at: it stands aside of what a run goes on from."""
        aside = self.out / DIVERGED
        store.save(aside, step=position.step, tensors=self.weights.tensors(), state=asdict(position), keep=1)
        say(f"{aside}: the weights, averages and place in the data at step {position.step}")

    def _record(self, position: Position, line: Line) -> None:
        assert self.metrics is not None and self.bar is not None
        if self.bar.total is None and position.total_steps is not None:
            self._say_budget(position)
        time_s = round(position.elapsed_s, 3)
        self.metrics.write("train", step=position.step, time_s=time_s, tokens=position.tokens, **line)
        self.bar.total = position.total_steps
        self.bar.update(position.step, status(line))

    def _say_budget(self, position: Position) -> None:
        """What the time budget buys, and a warning where a warm-up that was set by hand does not fit into it."""
        total, warmup = position.total_steps or 0, self._warmup(position)
        minutes = self.config.train.max_minutes
        say(f"step {position.step}: {minutes:g} minutes are about {total:,} steps, {warmup:,} of them warm-up")
        if warmup >= total:
            say("warning: the run ends inside its warm-up (leave optim.warmup_steps out: then it fits)")

    def _warmup(self, position: Position) -> int:
        """Steps of warm-up in the current stage."""
        total = self.stage.inside(position).total_steps
        return self.config.optim.warmup(None if total is None else total - self.stage.start)

    def _evaluate(self, position: Position) -> None:
        assert self.metrics is not None
        since = position.step - self.stage.start
        if position.step and not since:  # the stage before has just ended with one
            return
        batches: Iterable[Tensor] = (rows.to(self.device) for rows in self.held_out.split(self.execution.micro_batch))
        figures, sample = evaluate(self.model, self.stage.objective, batches, separator=self.separator)
        tokens = readable(sample, self.token_names)
        named = {f"eval/{name}": value for name, value in figures.items()}
        time_s = round(self.elapsed(), 3)
        self.metrics.write("eval", step=position.step, time_s=time_s, tokens=position.tokens, **named)
        self.metrics.write("sample", step=position.step, spaced=self.spaced, **tokens)
        say(evaluation_line(position.step, figures))
        say(sample_line(tokens))
        if "rtd_auc" in figures and since > self._warmup(position):
            rtd = {key: figures[key] for key in ("rtd_loss", "replaced_rate")}
            if warning := dead_discriminator(auc=figures["rtd_auc"], **rtd):
                say(f"warning: {warning}")


def held_out_rows(data: DataConfig) -> DataConfig:
    """How held-out text is laid out: `sentences` always with the paper's shares, so that runs with others compare."""
    if data.layout != "sentences":
        return data
    return replace(data, single_segment=0.1, short=0.05, short_length=0)


def _fit_vocabulary(config: Config, prepared: Prepared) -> Config:
    """The config with the data's vocabulary size; the data decides it."""
    if config.model.vocab_size != prepared.vocab_size:
        say(f"model.vocab_size is {prepared.vocab_size}, as in the data")
        config = replace(config, model=replace(config.model, vocab_size=prepared.vocab_size))
    validate(config)
    return config


def _require_memory(config: Config, device: torch.device) -> None:
    """Refuse a model whose weights, gradients and Adam's two averages alone are more than the device's memory."""
    count = parameters(config).total
    memory = hardware.memory_bytes(device)
    if memory is not None and count * STATE_BYTES > memory:
        reason = f"{count:,} parameters take {count * STATE_BYTES / 2**30:,.0f} GiB to train"
        fix = "make model.width, model.ffn, model.layers or the vocabulary smaller"
        raise ConfigError("model", f"{reason}, and the device has {memory / 2**30:,.0f} GiB", fix=fix)


def _counts(prepared: Prepared, *, most: int | None = None) -> Tensor:
    """How often each token occurs in the training text, or in about `most` tokens of it."""
    return torch.from_numpy(prepared.train.counts(most=most))
