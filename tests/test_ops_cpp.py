"""C++ ops beyond their numbers: the reference's dropout bit for bit, any number of threads, no compiler."""

from __future__ import annotations

import copy
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_backends import KEYS, Draw, exact, implementation, reference_ops
from ops_cases import CASES, Case
from test_ops_parity import leaves_of, run
from tiny import in_double
from torch import Tensor

from electra.model.layers import Layer, with_ops
from electra.ops import VOCAB_BLOCK
from electra.ops.cpp import library
from electra.ops.cpp.add_dropout_norm import add_dropout_norm
from electra.ops.cpp.batched_matmul import batched_matmul
from electra.ops.cpp.dropout import dropout, dropout_of
from electra.ops.cpp.linear_cross_entropy import linear_cross_entropy
from electra.ops.cpp.linear_gelu import linear_gelu
from electra.ops.cpp.stack_attention import AttentionInputs, BatchedProducts, HeadByHead
from electra.ops.cpp.weight_gradient import weight_gradient
from electra.ops.dispatch import CPP_OPS, host_ops, select
from electra.ops.reference.dropout import dropout as reference_dropout
from electra.ops.reference.encoder_stack import padding_mask

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # where the processor has no bf16
needs_compiler = pytest.mark.skipif(bool(library.missing()), reason=library.missing())
DTYPES = (torch.float32, torch.bfloat16)
SINGLE = Draw(torch.float32, "cpu")


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def afresh() -> Iterator[None]:
    """What was found out about compilers is forgotten before and after."""
    caches = (library.missing, library._library, library.has_amx)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


def forward_and_backward(
    run: Callable[[Tensor, float, Tensor], Tensor], x: Tensor, rate: float, keys: Tensor, incoming: Tensor
) -> tuple[Tensor, Tensor]:
    source = x.detach().requires_grad_()
    y = run(source, rate, keys)
    return y.detach(), torch.autograd.grad(y, source, incoming)[0]


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 9), min_size=0, max_size=2),
    width=st.sampled_from([1, 2, 3, 16, 33, 128, 255, 256, 257, 600]),
    sequences=st.integers(1, 5),
    rate=st.sampled_from([0.1, 0.5, 0.003, 0.9, 0.999999]),
    dtype=st.sampled_from(DTYPES),
)
def test_dropout_has_the_bits_of_the_reference(
    shape: list[int], width: int, sequences: int, rate: float, dtype: torch.dtype
) -> None:
    draw, keys = Draw(dtype, "cpu"), torch.tensor(KEYS[:sequences], dtype=torch.int32)
    inputs = (
        draw.numbers(sequences, *shape, width, seed=1),
        rate,
        keys,
        draw.numbers(sequences, *shape, width, seed=2),
    )
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    found = (forward_and_backward(one, *inputs) for one in (dropout, reference_dropout))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.view(bits), other.view(bits))


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_of_numbers_that_are_not_finite(dtype: torch.dtype) -> None:
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 3.0e38, 1e-40, -0.0], dtype=dtype).repeat(1, 64)
    key = torch.tensor([5], dtype=torch.int32)
    torch.testing.assert_close(dropout(odd, 0.5, key), reference_dropout(odd, 0.5, key), rtol=0, atol=0, equal_nan=True)


OWN = ("fold_keys", "dropout", "encoder_stack", "add_dropout_norm", "linear_gelu")
"""Ops whose sums over rows are ours, and a small stack; in the others torch takes some, by threads."""
FIRST = {case.op: case for case in reversed(CASES) if case.op in OWN and "cpp" in (case.only or ("cpp",))}


@needs_compiler
@pytest.mark.parametrize("op", sorted(FIRST))
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(op: str, dtype: torch.dtype) -> None:
    case: Case = FIRST[op]
    found = []
    for count in (1, 2):
        inputs = case.inputs(Draw(dtype, "cpu"))
        with threads(count):
            outputs, gradients, _ = run(implementation(op, "cpp"), inputs, leaves_of(case, inputs))
        found.append([*outputs, *gradients])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_without_gradients_is_the_same(dtype: torch.dtype) -> None:
    draw = Draw(dtype, "cpu")
    x, branch = draw.numbers(2, 5, 33, seed=1), draw.numbers(2, 5, 8, seed=2).requires_grad_()
    weights = (draw.numbers(33, 8, seed=3), draw.numbers(33, seed=4), draw.full(33, seed=5), draw.full(33, seed=6))
    want = add_dropout_norm(x, branch, *weights, rate=0.3, keys_B=draw.keys(2))
    with torch.inference_mode():
        got = add_dropout_norm(x, branch, *weights, rate=0.3, keys_B=draw.keys(2))
    assert want.requires_grad and torch.equal(got, want)


@needs_compiler
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 3e-7), (torch.bfloat16, 2e-4)])
def test_the_gelu_and_its_derivative_are_as_exact_as_promised(dtype: torch.dtype, limit: float) -> None:
    x = torch.linspace(-20, 20, 100_001).to(dtype)[:, None].requires_grad_()
    y = linear_gelu(x, torch.ones(1, 1, dtype=dtype), torch.zeros(1, dtype=dtype))
    (derivative,) = torch.autograd.grad(y, x, torch.ones_like(y))
    source = exact(x).requires_grad_()
    (true,) = torch.autograd.grad(F.gelu(source), source, torch.ones_like(source))
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-24
    for got, want in ((y, F.gelu(source)), (derivative, true)):
        allowed = limit * want.abs().clamp(min=1) + rounding * want.abs()
        # Far below zero the polynomial's last bit is multiplied by x.
        assert ((exact(got) - want).abs() <= allowed + 2e-5 * (dtype == torch.bfloat16) * source.abs()).all()


def softmax(scores: Tensor) -> Tensor:
    """Of the rows of a square, without dropout, by the C++ function."""
    weights, saved = scores[None, None].clone(), torch.empty_like(scores)[None, None]
    rows, columns = scores.shape
    assert rows == columns
    arguments = (weights, saved, None, 0, 0, None, None, 0, 1.0, 1.0, 1, 1, columns)
    library.call("softmax_dropout", scores.dtype, *arguments)
    return weights[0, 0]


@needs_compiler
def test_a_softmax_is_as_exact_as_single_precision_allows() -> None:
    scores = torch.linspace(-100, 0, 500**2).view(500, 500).T.contiguous()
    scores[:, 0] = 0.0  # so that nothing is lost before the exponential
    want = scores.double().softmax(-1)
    error = ((softmax(scores).double() - want) / want)[want > 1e-37]
    assert error.abs().max() < 5e-7


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_softmax_of_infinite_scores_is_that_of_the_reference(dtype: torch.dtype) -> None:
    lowest, infinite, none = torch.finfo(dtype).min, torch.inf, torch.nan
    rows = [
        [0.0, -infinite, 1.0, -infinite, 2.0, 0.5],
        [-infinite] * 6,
        [lowest] * 6,
        [1.0, none, 2.0, 3.0, 0.0, 0.0],
        [infinite, 0.0, 1.0, 2.0, 3.0, 4.0],
        [lowest, 5.0, lowest, 5.0, lowest, -200.0],
    ]
    scores = torch.tensor(rows, dtype=dtype)
    got, rtol = softmax(scores), 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got, scores.softmax(-1), equal_nan=True, rtol=rtol, atol=0)
    assert got[0, 1] == got[0, 3] == 0 and got[5, 0] == 0


@needs_compiler
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (7, 5, 17), (12, 64, 16), (33, 3, 40)])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_batched_products_without_mkl(
    rows: int, inner: int, columns: int, transposed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    a, b = (
        SINGLE.numbers(5, *sizes[::-1], seed=1).transpose(1, 2) if over else SINGLE.numbers(5, *sizes, seed=1)
        for sizes, over in zip(((rows, inner), (inner, columns)), transposed, strict=True)
    )
    want, out = a.double() @ b.double(), torch.empty(5, rows, columns)
    assert batched_matmul(a, b, out=out) is out
    for count in (1, 2):
        with threads(count):
            torch.testing.assert_close(batched_matmul(a, b).double(), want, rtol=1e-5, atol=1e-5)
            assert torch.equal(batched_matmul(a, b), out)


def predict(logits_MV: Tensor, keys_M: Tensor) -> tuple[Tensor, Tensor]:
    """-log p of the first entry, and samples, of given logits."""
    rows, size = logits_MV.shape
    gold, bias = torch.zeros(rows, dtype=torch.long), torch.zeros(size)
    prediction = linear_cross_entropy(logits_MV, torch.eye(size), bias, gold, keys_M, logits=False)
    assert prediction.logits_MV is None and prediction.sampled_M is not None
    return prediction.nll_M, prediction.sampled_M


@needs_compiler
def test_samples_follow_the_softmax() -> None:
    row = torch.full((1, 2 * VOCAB_BLOCK), -80.0)
    row[0, [3, 130, 255]] = torch.tensor([0.5, 0.3, 0.2]).log()
    _, sampled = predict(row.expand(4000, -1), torch.arange(4000, dtype=torch.int32))
    shares = torch.bincount(sampled, minlength=2 * VOCAB_BLOCK) / 4000
    assert shares[3] + shares[130] + shares[255] == 1
    torch.testing.assert_close(shares[[3, 130, 255]], torch.tensor([0.5, 0.3, 0.2]), rtol=0, atol=0.03)


@needs_compiler
def test_a_logit_that_is_no_number_makes_the_loss_none() -> None:
    logits = SINGLE.numbers(4, 2 * VOCAB_BLOCK, seed=1)
    logits[1, 7], logits[2, 9] = torch.nan, torch.nan
    nll, sampled = predict(logits, torch.arange(4, dtype=torch.int32))
    assert nll.isnan().tolist() == [False, True, True, False]
    assert (sampled >= 0).all() and (sampled < logits.shape[1]).all()


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rates", [(0.1, 0.1), (0.0, 0.2), (0.2, 0.0)])
@pytest.mark.parametrize("dropped", [True, False])
def test_a_layer_is_as_exact_as_the_reference(dtype: torch.dtype, rates: tuple[float, float], dropped: bool) -> None:
    torch.manual_seed(0)
    layer = Layer(24, 2, 96, dropout=rates[0], attention_dropout=rates[1], ops=host_ops())
    for name, parameter in layer.named_parameters():
        torch.nn.init.normal_(parameter, std=0.2)
        parameter.data = parameter.data.to(torch.float32 if "norm" in name else dtype)
    draw, keys = Draw(dtype, "cpu"), SINGLE.keys(3) if dropped else None

    def gradients(layer: Layer) -> list[Tensor]:
        like = layer.up.weight.dtype
        x = draw.numbers(3, 11, 24, seed=1).to(like).requires_grad_()
        lengths = torch.tensor([11, 4, 1])
        y = layer._ops.encoder_stack(
            x, [layer], lengths_B=lengths, spans=None, hidden_LL=None, keys_B=keys, recompute=False
        )
        incoming = draw.numbers(3, 11, 24, seed=2).to(like)
        return [y.detach(), *torch.autograd.grad(y, [x, *layer.parameters()], incoming)]

    def error(got: Tensor, want: Tensor) -> float:
        return float((exact(got) - want).abs().max() / want.abs().max().clamp(min=1e-3))

    true, plain = gradients(in_double(layer)), gradients(with_ops(layer, reference_ops(), dtype))
    compiled = gradients(copy.deepcopy(layer))
    assert not all(torch.equal(one, other) for one, other in zip(compiled, plain, strict=True)), "no C++ op ran"
    unit = 2**-22 if dtype == torch.float32 else 2**-8
    for mine, other, want in zip(compiled, plain, true, strict=True):
        assert error(mine, want) < 2 * error(other, want) + unit


# --- AMX ---

needs_amx = pytest.mark.skipif(
    bool(library.missing()) or not library.has_amx(), reason="needs AMX with bf16, and a C++ compiler that knows it"
)


@needs_amx
@settings(max_examples=30, deadline=None)
@given(
    tokens=st.one_of(st.integers(1, 70), st.sampled_from([255, 256, 257, 600])),
    rows=st.sampled_from([32, 64, 96, 160]),
    columns=st.sampled_from([32, 64, 96, 288]),
)
def test_weight_gradients_on_amx_are_those_of_float64(tokens: int, rows: int, columns: int) -> None:
    draw = Draw(torch.bfloat16, "cpu")
    gradient, x = draw.numbers(tokens, rows, seed=1), draw.numbers(tokens, columns, seed=2)
    found = []
    for count in (1, 2, 3):
        out = torch.full((rows, columns), torch.nan, dtype=torch.bfloat16)
        with threads(count):
            weight_gradient(gradient, x, out_NM=out)
        found.append(out)
    assert all(torch.equal(found[0], other) for other in found[1:])
    want = exact(gradient).T @ exact(x)
    assert ((exact(found[0]) - want).abs() <= 2.0**-8 * want.abs() + 1e-5 * tokens).all()


ON_AMX = [case for case in CASES if case.only == ("cpp",)]


@needs_amx
@pytest.mark.parametrize("case", ON_AMX, ids=lambda case: case.name)
def test_threads_change_no_bit_on_amx(case: Case) -> None:
    found = []
    for count in (1, 2, 3):
        inputs = case.inputs(Draw(torch.bfloat16, "cpu"))
        with threads(count):
            outputs, gradients, _ = run(implementation("encoder_stack", "cpp"), inputs, leaves_of(case, inputs))
        found.append([*outputs, *gradients])
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


@needs_amx
@pytest.mark.parametrize("length", [1, 7, 31, 32, 33, 64, 128])
@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("masked", [True, False])
def test_heads_on_amx_attend_as_batched_products_do(length: int, rate: float, masked: bool) -> None:
    sequences, heads, size = 3, 2, 32
    draw, width, tokens = Draw(torch.bfloat16, "cpu"), heads * size, sequences * length
    x, d_context = draw.numbers(tokens, width, seed=1), draw.numbers(tokens, width, seed=4)
    weight, bias = draw.numbers(3 * width, width, seed=2, scale=0.1), draw.numbers(3 * width, seed=3)
    lengths = torch.tensor([length, max(1, length // 2), 1])
    mask = padding_mask(lengths, length, torch.bfloat16).contiguous() if masked else None
    inputs = AttentionInputs(
        mask=(mask, length, 0) if masked else (None, 0, 0),
        sequences=sequences, length=length, heads=heads, head_size=size,
    )  # fmt: skip
    dropout_at = dropout_of(draw.keys(sequences), rate, length)
    one, other = HeadByHead(inputs), BatchedProducts(x, inputs)
    got, want = (way.forward(x, weight, bias, dropout_at) for way in (one, other))
    kept, expected = got.probabilities_XLL.float(), want.probabilities_XLL.float()
    assert torch.equal(kept.signbit()[kept != 0], expected.signbit()[kept != 0])
    sums = torch.empty(2, 3 * width, dtype=torch.bfloat16)
    found = [
        way.backward(d_context, saved, bias, dropout_at, d_bias_W=to)
        for way, saved, to in ((one, got, sums[0]), (other, want, sums[1]))
    ]
    pairs = ((kept, expected), (got.context_TD, want.context_TD), (found[0], found[1]), (sums[0], sums[1]))
    for mine, library_s in pairs:
        largest = float(library_s.abs().max())
        torch.testing.assert_close(mine.float(), library_s.float(), rtol=0.03, atol=0.03 * largest)


@needs_amx
def test_amx_and_the_librarys_products_take_turns() -> None:
    """Both set the tile registers of their threads."""
    draw = Draw(torch.bfloat16, "cpu")
    gradient, x = draw.numbers(300, 64, seed=1), draw.numbers(300, 96, seed=2)
    out = torch.empty(64, 96, dtype=torch.bfloat16)
    for _ in range(50):
        weight_gradient(gradient, x, out_NM=out)
        torch.testing.assert_close(out, gradient.T @ x, rtol=2.0**-7, atol=1e-3)


@pytest.mark.skipif(not shutil.which("g++") or platform.machine() != "x86_64", reason="needs g++ on x86")
@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_the_sources_compile_for_processors_without_amx(processor: str) -> None:
    options = [f"-march={processor}" if one == "-march=native" else one for one in library.OPTIONS]
    for source in sorted(library.SOURCES.glob("*.cpp")):
        command = ["g++", *options, "-fsyntax-only", "-Wall", "-Wno-unknown-pragmas", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


# --- machines ---


@pytest.mark.usefixtures("afresh")
def test_without_a_compiler_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    chosen = dict(select("auto", device=torch.device("cpu"), dtype=torch.float32))
    assert {chosen[name].backend for name in CPP_OPS} == {"reference"}
    assert all("no C++ compiler" in chosen[name].reason for name in CPP_OPS)


@pytest.fixture
def short_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that is compiled in a second: where it is kept does not depend on what is in it."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "one.cpp").write_text('extern "C" int answer() { return 42; }\n', encoding="utf-8")
    monkeypatch.setattr(library, "SOURCES", tmp_path / "sources")


@needs_compiler
@pytest.mark.usefixtures("afresh", "short_source")
def test_the_library_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not library.missing()
    (made,) = (tmp_path / "electra").glob("*.so")
    before = made.stat().st_mtime_ns
    for one in (library.missing, library._library):
        one.cache_clear()
    assert not library.missing() and made.stat().st_mtime_ns == before
    monkeypatch.setattr(library, "_processor", lambda: "another")
    for one in (library.missing, library._library):
        one.cache_clear()
    assert not library.missing() and len(list((tmp_path / "electra").glob("*.so"))) == 2


@needs_compiler
@pytest.mark.usefixtures("afresh", "short_source")
def test_without_a_cache_the_same_ops_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for this process alone: another implementation would end with other weights, without a word."""
    (tmp_path / "electra").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not library.missing()
    assert dict(select("auto", device=torch.device("cpu"), dtype=torch.float32))["dropout"].backend == "cpp"


@needs_compiler
def test_a_tensor_with_strides_is_refused() -> None:
    with pytest.raises(AssertionError, match="without strides"):
        library.call("bias_gelu", torch.float32, torch.zeros(4, 6).t(), torch.zeros(4), torch.zeros(6, 4), 6, 4)


@needs_compiler
@pytest.mark.usefixtures("afresh", "short_source")
def test_a_compiler_of_any_encoding_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "odd g++"
    compiler.write_bytes(b'#!/bin/sh\n[ "$1" = --version ] && printf "\\351\\n" && exit 0\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert not library.missing()


@needs_compiler
def test_openmp_is_found_in_a_folder_with_a_space(tmp_path: Path) -> None:
    """Where a person keeps a virtual environment."""
    folder = tmp_path / "my environment"
    folder.mkdir()
    (folder / "one.cpp").write_text('extern "C" int answer() { return 42; }\n', encoding="utf-8")
    made = folder / "libgomp-2.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", made, folder / "one.cpp"], check=True, timeout=60)
    code = f"""
import ctypes
from electra.ops.cpp import library
kept = ctypes.CDLL({str(made)!r})
library._share_threads()
print(ctypes.CDLL(None).answer())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert found.stdout.strip() == "42", found.stderr
