"""Networks as ONNX graphs with any batch and length, checked against torch, and their int8 form.

Inputs and outputs have the names that `transformers`' tokenizers give and its ONNX readers look for.

Shapes: B sequences, L length, D width.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.errors import CheckpointError, ConfigError, pip_install
from electra.interop.network import Network
from electra.model.heads import MaskedHead
from electra.model.layers import with_ops
from electra.ops.dispatch import host_ops

FILE, INT8_FILE = "model.onnx", "model_quantized.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 18
TOLERANCE = 1e-4
"""Largest difference from torch, in the outputs' unit or relative, that a graph may have."""
_TRACED = (2, 8)  # any size but 1, which the exporter takes for a constant
_TIMED_RUNS = 11

Outputs = tuple[Tensor, ...]
Arrays = list[NDArray[np.float32]]


class Graph(nn.Module):
    """What an ONNX file computes: from the three inputs to the named outputs, by plain PyTorch ops."""

    def __init__(
        self,
        network: nn.Module,
        read: Callable[[Any, Tensor], Outputs],
        names: tuple[str, ...],
        *,
        unit: float = 1.0,
    ) -> None:
        """`network` has embeddings and encoder; `read` gives the outputs for it and its last hidden states.

        `unit` is what outputs are a multiple of that `read` scales: rounding grows with it.
        """
        super().__init__()
        self.network = with_ops(network, host_ops("plain"), torch.float32).eval()
        self.read, self.names, self.unit = read, names, unit

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Outputs:
        network: Any = self.network
        x_BLE = network.embeddings(input_ids, token_type_ids, None)
        hidden_B11L = (attention_mask == 0)[:, None, None, :]  # wherever the padding stands
        states_BLD: Tensor = network.encoder(x_BLE, None, None, None, hidden_B11L)
        return self.read(network, states_BLD)

    @property
    def vocab_size(self) -> int:
        network: Any = self.network
        return int(network.embeddings.token.num_embeddings)

    @property
    def positions(self) -> int:
        network: Any = self.network
        return int(network.embeddings.positions)


def network_graph(network: Network) -> Graph:
    """A pre-trained network: the head's logits, or the last hidden states where it has no head."""
    if network.head is None:
        return Graph(network, lambda _, states: (states,), ("last_hidden_state",))
    if isinstance(network.head, MaskedHead):
        return Graph(network, _vocabulary_logits, ("logits",))
    return Graph(network, lambda one, states: (one.head(states),), ("logits",))


def _vocabulary_logits(network: Any, states_BLD: Tensor) -> Outputs:
    return (network.head.logits(states_BLD, network.embeddings.token.weight, network.head.bias),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantized:
    """The int8 form of a graph beside the fp32 one, on this machine."""

    bytes: int
    fp32_bytes: int
    difference: float
    """Root of the mean squared difference of the outputs, over their standard deviation."""
    milliseconds: float
    fp32_milliseconds: float
    """Median time of one sequence of `length` tokens."""
    length: int

    def __str__(self) -> str:
        size = f"{self.bytes / 1e6:.1f} MB instead of {self.fp32_bytes / 1e6:.1f}"
        speed = f"{self.milliseconds:.1f} ms instead of {self.fp32_milliseconds:.1f} for {self.length} tokens"
        return f"int8: {size}, {speed}, outputs differ by {self.difference:.1%} of their spread"


def write_graph(folder: Path, graph: Graph) -> float:
    """Put model.onnx into `folder`; the largest difference from torch, refused above TOLERANCE."""
    require_packages()
    ids_BL = torch.ones(_TRACED, dtype=torch.int64)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=graph.positions)}
    with torch.no_grad(), _quiet():
        program: Any = torch.onnx.export(
            graph,
            (ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL)),
            dynamo=True,
            input_names=list(INPUTS),
            output_names=list(graph.names),
            dynamic_shapes=dict.fromkeys(INPUTS, sizes),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
        program.save(folder / FILE, external_data=False)
    _remove_traces(folder / FILE)
    return _check(folder / FILE, graph)


def write_int8(folder: Path, graph: Graph) -> Quantized:
    """Put the int8 form of model.onnx into `folder`: weights in 8 bits, activations in 8 bits as they come."""
    require_packages()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet():
        quantize_dynamic(
            folder / FILE,
            folder / INT8_FILE,
            weight_type=QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["MatMul"],  # tables of embeddings stay as they are: they cost no time
        )
    length = min(128, graph.positions)
    inputs = _inputs(graph, batch=1, length=length)
    slow, fast = session(folder / FILE), session(folder / INT8_FILE)
    many = _inputs(graph, batch=8, length=length)
    exact, rounded = _run(slow, many)[0], _run(fast, many)[0]
    milliseconds, fp32_milliseconds = _milliseconds((fast, slow), inputs)
    return Quantized(
        bytes=(folder / INT8_FILE).stat().st_size,
        fp32_bytes=(folder / FILE).stat().st_size,
        difference=float(np.sqrt(np.mean((exact - rounded) ** 2)) / max(float(exact.std()), 1e-12)),
        milliseconds=milliseconds,
        fp32_milliseconds=fp32_milliseconds,
        length=length,
    )


def session(path: Path) -> Any:
    """An onnxruntime session of a file, on the CPU."""
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def require_packages() -> None:
    """Refuse to go on without the packages that write and run ONNX files."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError("--format onnx", f"needs {package}", fix=pip_install("onnx")) from error


def _remove_traces(path: Path) -> None:
    """Take out of the file what the exporter notes for debugging: this machine's paths and lines of source.

    The shapes that it notes go too: those of transposed weights stop the quantizer, which finds its own.
    """
    import onnx

    model = onnx.load(path)
    model.graph.ClearField("value_info")
    for noted in (model, model.graph, *model.graph.node, *model.graph.initializer):
        noted.ClearField("metadata_props")
        noted.ClearField("doc_string")
    for value in (*model.graph.input, *model.graph.output):
        value.ClearField("metadata_props")
    onnx.save(model, path)


def _check(path: Path, graph: Graph) -> float:
    """The largest difference between file and torch over several shapes, with padding on either side."""
    running, largest = session(path), 0.0
    for batch, length in ((1, 1), (3, min(17, graph.positions)), (2, graph.positions)):
        inputs = _inputs(graph, batch=batch, length=length)
        if batch > 1:
            inputs["attention_mask"][-1, length // 2 :] = 0
            inputs["attention_mask"][0, : length // 4] = 0
        with torch.no_grad():
            wanted = graph(*(torch.from_numpy(inputs[name]) for name in INPUTS))
        for name, ours, theirs in zip(graph.names, wanted, _run(running, inputs), strict=True):
            difference = np.abs(ours.numpy() - theirs)
            if not (difference <= TOLERANCE * np.maximum(graph.unit, np.abs(ours.numpy()))).all():
                reason = f"{name} differs from torch by {difference.max():.2g} at {batch} x {length}"
                raise CheckpointError(path.name, reason, fix="please report this")
            largest = max(largest, float(difference.max()))
    return largest


def _inputs(graph: Graph, *, batch: int, length: int) -> dict[str, NDArray[np.int64]]:
    """Sequences of any tokens, half of each in the second segment."""
    ids_BL = np.random.default_rng(0).integers(0, graph.vocab_size, (batch, length))
    segments_BL = np.broadcast_to(np.arange(length) >= length // 2, (batch, length)).astype(np.int64)
    return dict(zip(INPUTS, (ids_BL, np.ones_like(ids_BL), segments_BL), strict=True))


def _run(running: Any, inputs: dict[str, NDArray[np.int64]]) -> Arrays:
    found: Arrays = running.run(None, inputs)
    return found


def _milliseconds(sessions: Sequence[Any], inputs: dict[str, NDArray[np.int64]]) -> list[float]:
    """The median time of each session, measured in turns: whatever else the machine does slows them alike."""
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(_TIMED_RUNS):
        for running, own in zip(sessions, times, strict=True):
            began = time.perf_counter()
            _run(running, inputs)
            own.append(1e3 * (time.perf_counter() - began))
    return [statistics.median(own) for own in times]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's and the quantizer's remarks, which are about their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
