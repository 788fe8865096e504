"""A benchmark's rows as a table for people and as JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from electra import hardware
from electra.bench.chosen_ops import STACK_COLUMNS
from electra.bench.grid import PEERS, Job
from electra.bench.processes import Row
from electra.display import aligned
from electra.ops.choice_table import table_lines
from electra.progress import scaled

NOTE = """\
ms/step: the median stretch, after a warm-up. MFU: the needed matrix products as a share of the data sheet's peak (of a
peer's, not its logits for tokens that nobody asked for). memory: peak, of tensors on a GPU, of the process on a CPU.
start-up: building to the end of the first step, compiling included unless torch's cache on disk spares it; of several
rounds the first one's."""


def facts_of(jobs: Sequence[Job], *, rounds: int = 1) -> dict[str, Any]:
    """What is measured, and the machine that it is measured on."""
    import torch

    first = jobs[0]
    shape_keys = ("data.length=", "train.batch_size=")
    return {
        **hardware.facts(),
        "device": str(hardware.device(first.config.train.device)),
        "threads": torch.get_num_threads(),
        "preset": first.preset,
        "overrides": [text for text in first.overrides if not text.startswith(shape_keys)],
        "steps": first.steps,
        "rounds": rounds,
    }


def heading(facts: dict[str, Any]) -> list[str]:
    """Two lines: what was measured, and where."""
    changed = "".join(f" {text}" for text in facts["overrides"])
    return [
        f"{facts['preset']}{changed}: {facts['steps']} timed steps each{_turns(facts)}",
        f"{machine(facts)}, {_versions(facts)}, {facts['platform']}",
    ]


def _turns(facts: dict[str, Any]) -> str:
    return f", in each of {facts['rounds']} rounds" if facts["rounds"] > 1 else ""


def machine(facts: dict[str, Any]) -> str:
    """The GPU's name, or the CPU's with the cores and threads in use."""
    if facts["device"].startswith("cuda"):
        name: str = facts["gpus"][int(facts["device"].partition(":")[2] or 0)]["name"]
        return name
    counts = [f"{facts[name]} {name if facts[name] > 1 else name[:-1]}" for name in ("cores", "threads")]
    return ", ".join([facts["cpu"], *counts])


def _versions(facts: dict[str, Any]) -> str:
    names = ("torch", "transformers", "triton")
    return ", ".join(f"{name} {facts['packages'][name]}" for name in names if name in facts["packages"])


def ratios(row: Row, rows: Sequence[Row]) -> dict[str, float]:
    """By peer: how many times as fast the row is on the same shape."""
    if row.figures is None:
        return {}
    return {
        other.job.kind: row.figures.tokens_per_s / other.figures.tokens_per_s
        for other in rows
        if other.job.kind in PEERS.values() and other.job.shape == row.job.shape and other.figures is not None
    }


def as_json(rows: Sequence[Row], facts: dict[str, Any]) -> dict[str, Any]:
    """Everything measured, with what it was measured on; a row without figures has an `error`."""
    return {**facts, "measurements": [_entry(row, rows) for row in rows]}


def _entry(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    job = row.job
    entry: dict[str, Any] = {"step": job.kind, "batch": job.batch, "length": job.length}
    if row.figures is None:
        return entry | {"error": row.error}
    figures = asdict(row.figures)
    del figures["profile"]
    if job.kind in PEERS.values():
        del figures["ops"], figures["stacks"]
    return entry | figures | {"times_as_fast_as": ratios(row, rows)}


def as_text(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    """What was measured where, the table, what failed, and what the columns mean."""
    peers = [name for name in PEERS.values() if any(row.job.kind == name for row in rows)]
    header = ("step", "batch x length", "precision", "tokens/s", "ms/step", "MFU", "memory", "start-up")
    table = [(*header, *(f"x {peer.split()[-1]}" for peer in peers)), *(_cells(row, rows, peers) for row in rows)]
    lines = aligned(table, left=2)
    failed = [f"{row.job.title} failed: {row.error}" for row in rows if row.figures is None]
    return "\n".join([*heading(facts), "", *lines, "", *failed, *([""] if failed else []), NOTE, *choice_lines(rows)])


def choice_lines(rows: Sequence[Row]) -> list[str]:
    """Op by op what our steps run and why, each choice once; then the kernels of the encoders by shape."""
    ours = [(row.job, row.figures) for row in rows if row.figures is not None and row.figures.ops]
    lines: list[str] = []
    tables: dict[tuple[str, ...], list[str]] = {}
    for job, figures in ours:
        tables.setdefault(tuple(table_lines(figures.ops)), []).append(job.title)
    for table, titles in tables.items():
        lines += ["", f"ops of {'; '.join(titles)}", *table]
    stacks = [{"step": job.kind} | stack for job, figures in ours for stack in figures.stacks]
    if stacks:
        lines += ["", "encoders by shape", *table_lines(stacks, ("step", *STACK_COLUMNS))]
    return lines


def _cells(row: Row, rows: Sequence[Row], peers: Sequence[str]) -> tuple[str, ...]:
    job, found = row.job, row.figures
    start = (job.kind, f"{job.batch} x {job.length}")
    if found is None:
        return (*start, "-", "failed", *("-" for _ in range(4 + len(peers))))
    against = ratios(row, rows)
    return (
        *start,
        found.precision,
        scaled(found.tokens_per_s),
        f"{found.ms_per_step:.4g}",
        "-" if found.mfu is None else f"{found.mfu:.1%}",
        f"{found.memory_gib:.2f} GiB",
        f"{found.start_s:.1f} s",
        *(f"{against[peer]:.2f}" if peer in against else "-" for peer in peers),
    )
