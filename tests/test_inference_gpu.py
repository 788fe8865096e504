"""Detection, encoding and prediction as a GPU does them: in bf16, in batches of few shapes, recorded and replayed.

In bf16 on a CPU wherever there is no GPU: the rounding is the same, the recording is not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import tuned_folders
from model_folders import WORDS, make_run
from torch import nn

from electra import rng
from electra.finetune.batch_outputs import LAUNCH_BOUND, in_batches, plan_for_gpu
from electra.finetune.batching import FlatSequences
from electra.finetune.pretrained import load_pretrained
from electra.inference.detect import detect_all
from electra.inference.encode import encode
from electra.inference.placement import placed
from electra.inference.predict import predict
from electra.interop.models import load_model
from electra.tasks.rows import Features
from electra.train.replay import PAYS, fetched, replays_of

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # where the processor has no bf16
PLACE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TEXTS = [" ".join(WORDS[(number + word) % len(WORDS)] for word in range(number % 30)) for number in range(40)]
if PLACE.type == "cpu":  # a processor without bf16 takes seconds for each dozen
    TEXTS = TEXTS[10:13]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpu") / "run"
    make_run(folder)
    return folder


def test_bf16_detects_nearly_as_fp32(run: Path) -> None:
    single = load_model(run)
    half = replace(single, module=placed(single.module, "auto", PLACE, precision="bf16"))
    assert {one.dtype for one in half.module.encoder.layers[0].up.parameters()} == {torch.bfloat16}
    assert half.module.embeddings.token.weight.dtype == half.module.encoder.layers[0].norm.weight.dtype == torch.float32
    for _ in range(2 if PLACE.type == "cuda" else 1):  # recorded, then replayed
        for one, other in zip(detect_all(single, TEXTS), detect_all(half, TEXTS, batch_size=4), strict=True):
            found, want = ([token.probability for token in tokens] for tokens in (other.tokens, one.tokens))
            assert found == pytest.approx(want, abs=2e-2)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_bf16_encodes_nearly_as_fp32(run: Path, pooling: str) -> None:
    single = load_pretrained(run)
    parts = {name: placed(getattr(single, name), "auto", PLACE, precision="bf16") for name in ("embeddings", "encoder")}
    half = replace(single, **parts)
    want = encode(single, TEXTS, pooling=pooling)  # type: ignore[arg-type]
    for batch_size in (4, 4, 64) if PLACE.type == "cuda" else (4,):
        found = encode(half, TEXTS, pooling=pooling, batch_size=batch_size)  # type: ignore[arg-type]
        assert found.dtype == np.float32
        cosines = (found * want).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(want, axis=1)
        assert cosines.min() > 0.999


def test_bf16_predicts_nearly_as_fp32(tmp_path: Path) -> None:
    single = tuned_folders.loaded(tmp_path / "tuned", "classify")
    half = replace(single, network=placed(single.network, "auto", PLACE, precision="bf16"))
    for one, other in zip(predict(single, TEXTS), predict(half, TEXTS, batch_size=4), strict=True):
        assert other["probabilities"] == pytest.approx(one["probabilities"], abs=0.05)


@pytest.mark.parametrize(
    ("longest", "length"), [(3, 16), (16, 16), (17, 24), (30, 32), (33, 48), (49, 64), (65, 96), (97, 100)]
)
def test_small_batches_for_a_gpu_have_few_shapes(longest: int, length: int) -> None:
    [alone] = plan_for_gpu(np.array([2, longest, 3]), size_of=lambda _: 32, positions=100, weights=10)
    assert (alone.rows, alone.length, alone.recorded, alone.numbers.tolist()) == (4, length, True, [1, 2, 0])
    plan = plan_for_gpu(np.full(70, longest), size_of=lambda _: 32, positions=100, weights=10)
    assert [(one.rows, one.length, len(one.numbers)) for one in plan] == [(32, length, n) for n in (32, 32, 6)]


def test_large_batches_for_a_gpu_have_little_padding() -> None:
    weights = int(LAUNCH_BOUND) // (32 * 50)
    plan = plan_for_gpu(np.repeat([65, 51, 47], 32), size_of=lambda _: 32, positions=512, weights=weights)
    assert [(one.length, one.recorded) for one in plan] == [(72, False), (56, False), (48, True)]
    [few] = plan_for_gpu(np.full(5, 400), size_of=lambda _: 32, positions=512, weights=weights)
    assert (few.rows, few.length, few.recorded) == (5, 400, False)


def test_batches_cover_every_sequence_once_the_longest_first() -> None:
    network = nn.Linear(1, 1)
    ids = [[5] * (1 + rng.derive(0, "length", number) % 20) for number in range(33)]
    found: dict[int, int] = {}
    lengths = []
    for numbers, arrays in in_batches(
        FlatSequences.of(Features(ids=ids, a_lengths=[len(one) for one in ids])),
        lambda batch: {"sum": batch.ids_BL.sum(1)},
        network=network,
        name="sum",
        batch_size=4,
        pad_id=0,
        positions=32,
    ):
        found |= dict(zip(numbers, arrays["sum"].tolist(), strict=True))
        lengths.append(max(len(ids[number]) for number in numbers))
    assert found == {number: 5 * len(one) for number, one in enumerate(ids)}
    assert lengths == sorted(lengths, reverse=True) and len(lengths) == 9


@pytest.mark.parametrize("times", [0, 1, PAYS])
def test_what_is_replayed_is_what_is_computed(times: int) -> None:
    network, results = nn.Linear(2, 2).to(PLACE), []
    for number in range(2 * PAYS):
        rows = torch.full((3, 2), number, dtype=torch.int32, device=PLACE)
        with torch.inference_mode():
            outputs = replays_of(network).run("doubled", lambda one: {"doubled": one * 2}, rows, times=times)
            results.append(fetched(outputs))
    if PLACE.type == "cuda":  # each was copied before the next one overwrote it
        assert [int(one()["doubled"][0, 0]) for one in results] == [2 * number for number in range(2 * PAYS)]
    assert int(results[-1]()["doubled"][2, 1]) == 2 * (2 * PAYS - 1)
