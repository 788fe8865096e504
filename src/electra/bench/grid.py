"""What a benchmark measures: kinds of step times shapes of batch, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from electra import hardware
from electra.config.load import load
from electra.config.schema import Config, TrainConfig
from electra.errors import ConfigError, suggest

OURS, FUSED, PLAIN = "ours", "ours fused", "ours plain"
PEERS = {"eager": "transformers eager", "compiled": "transformers compiled"}
"""How a peer is named on the command line, and in tables."""
ON_GPU = {"fused": FUSED, "plain": PLAIN}
"""Our kinds of step on a GPU, as named on the command line, and in tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One measurement: a kind of step on a shape of batch. Everything else is in the preset and its overrides."""

    kind: str
    preset: str
    overrides: tuple[str, ...]
    batch: int
    length: int
    steps: int
    """Timed steps, after those that warm up."""
    profile: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.batch, self.length

    @property
    def title(self) -> str:
        return f"{self.kind}, {self.batch} x {self.length}"

    @property
    def config(self) -> Config:
        return load(self.preset, overrides=self.overrides)


def plan(
    preset: str | None,
    *,
    overrides: Sequence[str] = (),
    batches: Sequence[int] = (),
    lengths: Sequence[int] = (),
    peers: Sequence[str] = tuple(PEERS),
    ours: Sequence[str] = (),
    device: str | None = None,
    steps: int = 30,
    profile: bool = False,
) -> list[Job]:
    """Every measurement, ours before the peers of its shape; ConfigError for what cannot be measured.

    What is left out is as in the preset. `ours` names what to do with the fused kernels of a GPU: fused, plain.
    """
    changes = [*overrides, *([f"train.device={device}"] if device else [])]
    kinds: list[str] | None = None
    jobs = []
    for length in lengths or (None,):
        for batch in batches or (None,):
            shape = [f"data.length={length}"] if length else []
            shape += [f"train.batch_size={batch}"] if batch else []
            config = load(preset, overrides=[*changes, *shape])
            kinds = kinds or [*_our_kinds(config.train, ours), *(PEERS[name] for name in peers)]
            if peers:
                _require_twin(config)
            jobs += [
                Job(
                    kind=kind,
                    preset=config.preset,
                    overrides=tuple(text for text in (*changes, *shape) if not text.startswith("preset=")),
                    batch=config.train.batch_size,
                    length=config.data.length,
                    steps=steps,
                    profile=profile and kind not in PEERS.values(),
                )
                for kind in kinds
            ]
    return jobs


def sizes(text: str, option: str) -> list[int]:
    """`32,128` as numbers, each once."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not part.isascii() or not part.isdigit() or int(part) < 1:
            raise ConfigError(option, f"{part!r} is not a whole number above 0", fix=f"such as {option} 32,128")
    return list(dict.fromkeys(int(part) for part in parts))


def choices(text: str, option: str, known: Sequence[str]) -> list[str]:
    """`eager,compiled` as names, each known and once; `none` alone is none."""
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if names == ["none"] and "none" in known:
        return []
    for name in names:
        if name not in known or name == "none":
            reason = "'none' stands alone" if name in known else f"{name!r} is not one of {', '.join(known)}"
            raise ConfigError(option, reason, fix=suggest(name, known) if name not in known else f"{option} none")
    return names


def _our_kinds(train: TrainConfig, asked: Sequence[str]) -> list[str]:
    if hardware.device(train.device).type == "cuda":
        return gpu_kinds(asked, plain=train.kernels == "plain", triton=find_spec("triton") is not None)
    if asked:
        raise ConfigError("--ours", "a CPU has one kind of step: the fused kernels are a GPU's", fix="leave it out")
    return [OURS]


def gpu_kinds(asked: Sequence[str], *, plain: bool, triton: bool) -> list[str]:
    """Our kinds of step on a GPU: those asked for, or fused where the settings and the machine allow it."""
    if "fused" in asked and not triton:
        raise ConfigError("--ours", "the fused kernels need triton", fix="pip install triton, or --ours plain")
    if "fused" in asked and plain:
        raise ConfigError("--ours", "train.kernels=plain leaves the fused kernels out", fix="say one of them")
    return [ON_GPU[name] for name in asked] or [FUSED if triton and not plain else PLAIN]


def _require_twin(config: Config) -> None:
    """Refuse to compare with a peer that would do another thing."""
    wanted: dict[str, tuple[object, object]] = {
        "objective.overlap_weight": (config.objective.overlap_weight, 0.0),
    }
    if config.data.layout == "packed":
        wanted["data.layout"] = (config.data.layout, "sentences")
    if config.objective.name != "mlm":
        wanted |= _wanted_of_two_networks(config)
    for key, (value, twin) in wanted.items():
        if value != twin:
            raise ConfigError("--peer", f"the step with transformers modules has no {key}={value}", fix="--peer none")


def _wanted_of_two_networks(config: Config) -> dict[str, tuple[object, object]]:
    return {
        "objective.name": (config.objective.name, "rtd"),
        "objective.contrastive_weight": (config.objective.contrastive_weight, 0.0),
        "generator.kind": (config.generator.kind, "transformer"),
        "generator.tying": (config.generator.tying, "embeddings"),
        "train.algorithm": (config.train.algorithm, "joint"),
    }
