"""What the laboratory costs those who never enter it: the default step against one written out without any choice.

    python benchmarks/generality.py --preset tiny --batch 32 --steps 20
    python benchmarks/generality.py --preset small --batch 128 --steps 100 --variants

The bare step knows no objective, proposer, sharing, algorithm or stage: it calls the networks and the optimizer one
after another. Both take the same rows and turns; same losses to the last bit, operations counted on the way.
`--variants` adds the time of every other objective, generator and sharing beside the default's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from electra import hardware, rng
from electra.batches.layout import Specials
from electra.batches.sequences import unpack
from electra.bench.ours import CLS, MASK, PAD, SEP, random_rows
from electra.config.load import load
from electra.config.schema import Config
from electra.kernels import one_launch
from electra.model.electra import DISCRIMINATOR_SITE, GENERATOR_SITE, Electra, build_model
from electra.objective.base import gather_slots
from electra.objective.corrupt import choose_slots, mask, replace, slot_keys
from electra.objective.table import build_objective
from electra.objective.words import foretell
from electra.train.capture import Captured
from electra.train.optim import Update
from electra.train.parallel import World
from electra.train.state import Master
from electra.train.step import Stepper

SPECIALS = Specials(pad=PAD, cls=CLS, sep=SEP, mask=MASK)
VARIANTS = {
    "objective mlm": ["objective.name=mlm"],
    "objective rtd-15": ["objective.name=rtd-15"],
    "objective replace-mlm": ["objective.name=replace-mlm"],
    "objective all-tokens-mlm": ["objective.name=all-tokens-mlm"],
    "objective electric": ["objective.name=electric", "generator.kind=two-tower"],
    "generator unigram": ["generator.kind=unigram"],
    "generator two-tower": ["generator.kind=two-tower"],
    "temperature 2": ["generator.temperature=2"],
    "sharing none": ["generator.tying=none"],
    "sharing gdes": ["generator.tying=gdes"],
}


class Operations(TorchDispatchMode):
    """Counts what is asked of the device, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, given=(), named=None):  # type: ignore[no-untyped-def]
        self.count += not operation.is_view
        return operation(*given, **(named or {}))


def bare_step(config: Config, rows: Tensor) -> Callable[[], Tensor]:
    """The default training step, written out; it returns the loss."""
    model = build_model(config)
    assert isinstance(model, Electra) and model.generator is not None and model.generator_head is not None
    master = Master(model, compute=hardware.compute_dtype("auto", rows.device), device=rows.device)
    update = Update(master, config.optim)
    loss_now = torch.zeros((), device=rows.device)

    def loss_of() -> Tensor:
        batch = unpack(rows)
        special = (CLS, SEP, MASK, PAD)
        slots = choose_slots(batch, config.masking, special)
        judged_BL = torch.arange(rows.shape[1] - 3, device=rows.device) < batch.lengths_B[:, None]
        shown = mask(batch, slots, masked_share=config.masking.masked_share, mask_id=MASK)
        keys = rng.fold(batch.keys_B, GENERATOR_SITE)
        hidden = model.generator(model.embeddings(shown, batch.segments_BL, keys), batch.lengths_B, keys)
        gold = batch.ids_BL.gather(1, slots.positions_BS).flatten().long()
        hidden = gather_slots(hidden, slots.positions_BS)
        table = model.embeddings.token.weight
        _, nll, sampled = foretell(model.generator_head, hidden, table, gold, slot_keys(batch, slots), logits=False)
        assert sampled is not None
        official = config.masking.policy == "official"
        seen = replace(batch, slots, sampled.view(slots.used_BS.shape), official=official)
        keys = rng.fold(batch.keys_B, DISCRIMINATOR_SITE)
        states = model.discriminator(model.embeddings(seen, batch.segments_BL, keys), batch.lengths_B, keys)
        scores = model.discriminator_head(states)
        if one_launch(scores):
            from electra.kernels.detect import detect

            rtd, _, _ = detect(scores, seen, batch.ids_BL, batch.lengths_B, slots.used_BS)
        else:
            wrong = (seen != batch.ids_BL).float()
            rtd = (F.binary_cross_entropy_with_logits(scores, wrong, reduction="none") * judged_BL).sum()
        used = slots.used_BS.flatten().float()
        rtd = config.objective.rtd_weight * rtd / judged_BL.sum().float().clamp(min=1)
        return rtd + config.objective.mlm_weight * (nll * used).sum() / slots.used_BS.sum().float().clamp(min=1)

    def work() -> None:
        loss = loss_of()
        loss.backward()
        master.collect(first=True)
        update()
        loss_now.copy_(loss.detach())

    update.lr.fill_(0.0)
    run: Callable[[], None] = work
    if rows.is_cuda:
        captured = Captured(work, (), changed=(master.weights, master.average, master.square))
        run = captured
    return lambda: (run(), loss_now)[1]  # type: ignore[func-returns-value]


def our_step(config: Config, rows: Tensor) -> Callable[[], Tensor]:
    """The same through the objectives' table; it returns the loss."""
    model = build_model(config)
    master = Master(model, compute=hardware.compute_dtype("auto", rows.device), device=rows.device)
    counts = torch.ones(config.model.vocab_size, dtype=torch.int64)
    objective = build_objective(config, SPECIALS, counts=lambda: counts, device=rows.device)
    stepper = Stepper(
        model, master, Update(master, config.optim), objective, world=World(), micro_batch=len(rows), compiled=False
    )

    def step() -> Tensor:
        stepper(rows, 0.0)
        return torch.tensor(0.0)

    step.read = lambda: objective.means(stepper.read())["loss"]  # type: ignore[attr-defined]
    return step


def timed(steps: dict[str, Callable[[], Tensor]], turns: int, device: torch.device) -> dict[str, float]:
    """Median milliseconds, the kinds taking turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 2):
        for name, step in steps.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 2:
                found[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--variants", action="store_true")
    args = parser.parse_args()
    device = hardware.device("auto")
    config = load(args.preset)
    rows = random_rows(config, args.batch).to(device)
    bare, ours = bare_step(config, rows), our_step(config, rows)
    with Operations() as in_bare:
        loss = float(bare())
    with Operations() as in_ours:
        ours()
    print(f"loss: bare {loss:.6f}, default {ours.read():.6f}")  # type: ignore[attr-defined]
    if device.type == "cpu":
        print(f"operations: bare {in_bare.count}, default {in_ours.count} (totals for the log are the difference)")
    times = timed({"bare": bare, "default": ours}, args.steps, device)
    print(
        f"ms a step: bare {times['bare']:.2f}, default {times['default']:.2f}: {times['default'] / times['bare']:.3f}"
    )
    if args.variants:
        steps = {name: our_step(load(args.preset, overrides=changes), rows) for name, changes in VARIANTS.items()}
        for name, one in timed(steps, args.steps, device).items():
            print(f"  {name:26} {one:8.2f} ms, {one / times['default']:.2f} times the default's")


if __name__ == "__main__":
    main()
