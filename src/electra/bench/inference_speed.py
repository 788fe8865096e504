"""`python -m electra.bench.inference_speed --model FOLDER --texts FILE`: texts a second beside the peers, in one run.

A fine-tuned FOLDER predicts; a pre-trained one detects and encodes. The peers get the same texts from text to answer,
`transformers` (sdpa, eager) and ONNX Runtime in batches in the file's order, each padded to its longest, as their
tutorials do it. On a CPU everything computes in fp32, on a GPU in bf16, without ONNX Runtime.

What each delivers is on the host when the time is taken, as arrays: for `detect` a number a token (ours a probability,
the peers' a logit), for `encode` a vector a text, for `predict` the peers' logits and our dicts of labels. Tokens with
their characters are made when they are read: neither we nor the peers make them here.

The first pass, after 64 texts, is shown apart: in it ours records the shapes that recur (on a GPU) and meets most words
for the first time. Each pass takes the next texts of the file, and begins it again where there are no more: of a file
with no more than `--count` texts, later passes know every word. Tokenizers use all cores, ours and the peers'.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch

from electra import hardware
from electra.bench.start import start
from electra.display import text_table
from electra.errors import DataError
from electra.finetune.export import export
from electra.finetune.model_folder import load_finetuned
from electra.finetune.pretrained import load_pretrained
from electra.inference import detect, encode, likelihood, predict
from electra.interop.finetuned_folder import is_finetuned
from electra.interop.models import load_model
from electra.interop.onnx_graph import FILE, INPUTS, session

Infer = Callable[[Sequence[str]], object]


@click.command()
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Run, exported or fine-tuned folder.")
@click.option("--texts", type=click.Path(path_type=Path), required=True, help="File with a text a line.")
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Texts in a batch.")
@click.option("--count", type=click.IntRange(1), default=2000, show_default=True, help="Texts in a pass.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Passes after the first; medians.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
def command(model: Path, texts: Path, batch: int, count: int, rounds: int, device: str) -> None:
    """Texts a second, ours and the peers', in turns."""
    lines = [line for line in texts.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise DataError(texts, "has no text", fix="give a file with a text a line")
    source = cycle(lines)
    passes = [list(islice(source, min(count, len(lines)))) for _ in range(1 + rounds)]
    rows = []
    with TemporaryDirectory() as folder, _tokenizing_on_all_cores():
        for verb, implementations in _implementations(model, Path(folder), batch=batch, device=device).items():
            speeds = in_turns(implementations, passes)
            first, later = speeds["electra"]
            for name, (its_first, its_later) in speeds.items():
                gains = f"{first / its_first:.2f}", f"{later / its_later:.2f}"
                rows.append((verb, name, f"{its_first:,.0f}", gains[0], f"{its_later:,.0f}", gains[1]))
    header = ("verb", "implementation", "first pass, texts/s", "our speed-up", "later, texts/s", "our speed-up")
    click.echo(text_table(header, rows))
    words = statistics.mean(len(line.split()) for one in passes for line in one)
    about = f"{len(passes[0]):,} texts of {words:.1f} words in the mean, batches of {batch}, {hardware.device(device)}"
    click.echo(f"{about}; {len(lines):,} texts in the file, {rounds} passes after the first")


def in_turns(implementations: dict[str, Infer], passes: Sequence[Sequence[str]]) -> dict[str, tuple[float, float]]:
    """Texts a second of each implementation in the first pass, and the median of the others.

    Each has warmed up on some of the texts.
    """
    speeds: dict[str, list[float]] = {name: [] for name in implementations}
    for infer in implementations.values():
        infer(passes[0][:64])
    for texts in passes:
        for name, infer in implementations.items():
            began = time.perf_counter()
            infer(texts)
            speeds[name].append(len(texts) / (time.perf_counter() - began))
    return {name: (first, statistics.median(later)) for name, (first, *later) in speeds.items()}


@contextmanager
def _tokenizing_on_all_cores() -> Iterator[None]:
    """Whatever the environment says, and as if a process had not been forked."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _implementations(model: Path, folder: Path, *, batch: int, device: str) -> dict[str, dict[str, Infer]]:
    """For each verb of this model: ours and the peers'."""
    place = hardware.device(device)
    hf = folder / "hf"
    architecture = export(model, hf).architecture
    implementations: dict[str, dict[str, Infer]] = {}
    if is_finetuned(model):
        tuned = predict.on_device(load_finetuned(model), device)
        implementations["predict"] = {"electra": lambda texts: predict.predict(tuned, texts, batch_size=batch)}
        peers = {"predict": architecture}
    else:
        loaded = likelihood.on_device(load_model(model), device)
        base = encode.on_device(load_pretrained(model), device)
        implementations["detect"] = {"electra": lambda texts: detect.detect_all(loaded, texts, batch_size=batch)}
        implementations["encode"] = {"electra": lambda texts: encode.encode(base, texts, batch_size=batch)}
        peers = {"detect": architecture, "encode": "ElectraModel"}
    for verb in implementations:
        implementations[verb]["transformers"] = _transformers(hf, peers[verb], batch=batch, place=place)
    if place.type == "cpu":
        export(model, folder / "onnx", form="onnx")
        for verb in set(implementations) - {"encode"}:
            implementations[verb]["onnxruntime"] = _onnxruntime(folder / "onnx", hf, batch=batch)
    return implementations


def _transformers(folder: Path, architecture: str, *, batch: int, place: torch.device) -> Infer:
    import transformers

    transformers.utils.logging.set_verbosity_error()  # it lists the head that an encoder alone does not load
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = getattr(transformers, architecture).from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    network.to(place).eval()

    def infer(texts: Sequence[str]) -> list[Any]:
        found = []
        with torch.inference_mode():
            for first in range(0, len(texts), batch):
                part = list(texts[first : first + batch])
                inputs = tokenizer(part, padding=True, truncation=True, return_tensors="pt").to(place)
                outputs = network(**inputs)[0].float()
                if architecture == "ElectraModel":
                    mask = inputs["attention_mask"][:, :, None]
                    outputs = (outputs * mask).sum(1) / mask.sum(1)
                found.append(outputs.cpu().numpy())
        return found

    return infer


def _onnxruntime(folder: Path, tokenizer_folder: Path, *, batch: int) -> Infer:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    running = session(folder / FILE)

    def infer(texts: Sequence[str]) -> list[Any]:
        found = []
        for first in range(0, len(texts), batch):
            part = tokenizer(list(texts[first : first + batch]), padding=True, truncation=True, return_tensors="np")
            ids = part["input_ids"].astype(np.int64)
            mask = part["attention_mask"].astype(np.int64)
            found.append(running.run(None, dict(zip(INPUTS, (ids, mask, 0 * ids), strict=True)))[0])
        return found

    return infer


if __name__ == "__main__":
    start(command)
