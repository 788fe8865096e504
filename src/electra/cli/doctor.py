"""`electra doctor`: what this machine and this installation can do."""

from __future__ import annotations

import os
import shutil
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from electra.cli.lines import echo
from electra.display import aligned
from electra.errors import pip_install
from electra.progress import counted
from electra.terminal import json_text

if TYPE_CHECKING:
    import torch

EXTRAS = {
    "data": ({"pyarrow": "pyarrow", "zstandard": "zstandard", "datasets": "datasets"}, "Parquet, .zst, hub data sets"),
    "hf": (
        {"transformers": "transformers", "huggingface-hub": "huggingface_hub"},
        "hub names, push; verify exports",
    ),
    "onnx": ({"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}, "export to ONNX"),
    "embed": ({"sentence-transformers": "sentence_transformers"}, "loads exported embedding models"),
    "eval": ({"scikit-learn": "sklearn", "scipy": "scipy"}, "reference metrics"),
    "scale": ({"datatrove": "datatrove", "regex": "regex"}, "near-duplicates of a large corpus"),
    "report": ({"jinja2": "jinja2", "matplotlib": "matplotlib"}, "report.html with plots"),
    "serve": ({"fastapi": "fastapi", "uvicorn": "uvicorn"}, "electra serve: a model on a page"),
    "docs": ({"mkdocs": "mkdocs", "mkdocs-material": "material"}, "make site: the documentation as a site"),
    "track": ({"tensorboard": "tensorboard", "wandb": "wandb"}, "track=tensorboard, track=wandb"),
}
"""Extra to its packages (distribution name to module) and what it is for."""

GB = 1e9


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def command(as_json: bool) -> None:
    """What this machine and this installation can do."""
    found = examine()
    echo(json_text(found, indent=2) if as_json else _lines(found))


def examine() -> dict[str, Any]:
    """Everything the command prints, as one dictionary."""
    from electra import hardware
    from electra.interop.bundled import bytes_of, present
    from electra.ops.choice_table import described
    from electra.ops.dispatch import select, triton_missing

    device = hardware.device("auto")
    dtype = hardware.compute_dtype("auto", device)
    return {
        **hardware.facts(),
        "device": str(device),
        "precision": str(dtype).removeprefix("torch."),
        "peak_flops": hardware.peak_flops(device, dtype),
        "matmul_flops": measure_matmul(device, dtype),
        "disk_free_bytes": shutil.disk_usage(os.curdir).free,
        "compiler": compiler(),
        "kernels": triton_missing(),
        "ops": described(select(device=device, dtype=dtype)),
        "models": {name: bytes_of(name) for name in present()},
        "extras": {extra: missing_packages(extra) for extra in EXTRAS},
    }


def missing_packages(extra: str) -> list[str]:
    return [name for name, module in EXTRAS[extra][0].items() if find_spec(module) is None]


def compiler() -> str | None:
    """The C++ compiler that torch.compile would use on a CPU, by its command name."""
    names = (os.environ.get("CXX", ""), "c++", "g++", "clang++")
    return next((os.path.basename(name) for name in names if name and shutil.which(name)), None)


def measure_matmul(device: torch.device, dtype: torch.dtype, *, seconds: float = 0.5) -> float:
    """FLOP/s of a square matrix product, best of several short measurements."""
    import torch

    cuda = device.type == "cuda"
    size = 8192 if cuda else 1024
    a = torch.ones(size, size, device=device, dtype=dtype)
    rates: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(rates) < 3:
        began = time.perf_counter()
        a @ a
        if cuda:
            torch.cuda.synchronize(device)
        rates.append(2 * size**3 / (time.perf_counter() - began))
    return max(rates)


def _models(sizes: dict[str, int]) -> str:
    """The models of this package, the default one first."""
    if not sizes:
        return "none in this installation: --model has no default"
    listed = ", ".join(f"{name} ({size / 1e6:.1f} MB)" for name, size in sizes.items())
    return f"{listed}; --model takes them by name"


def _lines(found: dict[str, Any]) -> str:
    from electra.ops.choice_table import table_lines

    packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
    memory = f"{found['memory_bytes'] / GB:.0f} GB" if found["memory_bytes"] else "unknown"
    peak = f" (data sheet: {found['peak_flops'] / GB:,.0f})" if found["peak_flops"] else ""
    rows = [
        ("electra", found["electra"] + (f" ({found['git'][:12]})" if found["git"] else "")),
        ("python", f"{found['python']} on {found['platform']}"),
        ("packages", packages),
        ("cpu", f"{found['cpu']}, {counted(found['cores'], 'core')}" + (", bf16" if found["cpu_bf16"] else "")),
        ("memory", memory),
        *[("gpu", f"{gpu['name']}, {gpu['memory_bytes'] / GB:.0f} GB, sm {gpu['sm']}") for gpu in found["gpus"]],
        ("trains on", f"{found['device']} in {found['precision']}"),
        ("matmul", f"{found['matmul_flops'] / GB:,.0f} GFLOP/s measured{peak}"),
        ("disk free", f"{found['disk_free_bytes'] / GB:.0f} GB here"),
        (
            "compiler",
            found["compiler"] or "none found: C++ ops need g++ or the one in CXX, train.compile=on any",
        ),
        ("models", _models(found["models"])),
        ("GPU kernels", f"none: {found['kernels']}" if found["kernels"] else "fused"),
    ]
    for extra, missing in found["extras"].items():
        use = EXTRAS[extra][1]
        state = f"missing {', '.join(missing)}: {pip_install(extra)}" if missing else "installed"
        rows.append((f"[{extra}]", f"{state} ({use})"))
    return "\n".join([*aligned(rows), "", *table_lines(found["ops"])])
