"""Which implementation of an op runs: chosen once, immutable, named with its reason, and never for the next run too."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import one_process
import pytest
import tiny_runs
import torch
from model_folders import RTD, SIZE, VOCAB, make_run
from tiny_runs import ROOT, make_data, small_config, weights
from tiny_tuning import healthy, tiny_base, toy
from torch import Tensor
from tuned_folders import make_tuned, save_finetuned

from electra.config.finetune import FinetuneConfig
from electra.finetune.model_folder import load_finetuned
from electra.finetune.pretrained import load_pretrained
from electra.finetune.task_model import HeadSpec
from electra.finetune.trainer import Trial, train_together
from electra.inference.detect import detect
from electra.interop.models import load_model
from electra.ops import Ops
from electra.ops.dispatch import OPS, TRITON_OPS, StackShape, cuda_missing, host_ops, select, stack_plan
from electra.pretrain import pretrain
from electra.tokenizer.codec import Tokenizer
from electra.train.interrupt import Stop

Kernels = Literal["auto", "plain"]
CPU = torch.device("cpu")
FEW = ("train.steps=4", "optim.warmup_steps=2", "evaluate.every=0", "checkpoint.every=100")
ORDERS: list[tuple[Kernels, Kernels]] = [("auto", "plain"), ("plain", "auto")]
HAS_CPP = any(chosen.backend == "cpp" for _, chosen in host_ops())
"""Without a C++ compiler, `auto` is the reference on a CPU too."""


def backends(ops: Ops) -> set[str]:
    return {chosen.backend for _, chosen in ops}


def implementation(op: str, backend: str) -> object:
    return getattr(import_module(f"electra.ops.{backend}.{op}"), op)


# The choice


def test_a_choice_names_backend_and_reason_of_every_op() -> None:
    ops = select(device=CPU, dtype=torch.float32)
    assert [name for name, _ in ops] == list(OPS) and len(OPS) > 20
    methods = {name for name in vars(Ops) if not name.startswith("_")} - {"chosen"}
    assert set(OPS) == methods, "every method is an op"
    for name, chosen in ops:
        assert chosen.backend in ("cpp", "reference") and chosen.reason, name
        assert chosen.run is implementation(name, chosen.backend), "the same file name for the same op"


def test_a_choice_cannot_be_changed() -> None:
    ops = select(device=CPU, dtype=torch.float32)
    other = select("plain", device=CPU, dtype=torch.float32)
    with pytest.raises(TypeError, match="does not support item assignment"):
        ops.chosen["attention"] = other.chosen["attention"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        ops.chosen = other.chosen  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ops.chosen["attention"].backend = "other"  # type: ignore[misc]
    given = dict(ops.chosen)
    made = Ops(given)
    given.clear()
    assert list(made.chosen) == list(OPS), "nor by whoever made it"


def test_copies_of_a_model_share_its_choice() -> None:
    base = tiny_base()
    copied = copy.deepcopy(base.encoder)
    assert copied._ops is base.encoder._ops
    assert all(layer._ops is base.encoder._ops for layer in copied.layers)
    assert copy.deepcopy(host_ops()) is host_ops()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_and_compiled_take_the_reference_everywhere(dtype: torch.dtype) -> None:
    for device in (CPU, torch.device("cuda")):
        plain = select("plain", device=device, dtype=dtype)
        compiled = select("auto", device=device, dtype=dtype, compiled=True)
        assert backends(plain) == backends(compiled) == {"reference"}
        assert {chosen.reason for _, chosen in plain} == {"train.kernels=plain"}
        assert {chosen.reason for _, chosen in compiled} == {"the step is compiled"}
        for name, chosen in (*plain, *compiled):
            assert chosen.run is implementation(name, "reference")


def test_single_ops_can_take_the_reference() -> None:
    ops = select(device=CPU, dtype=torch.float32, reference=["attention"])
    assert (ops.chosen["attention"].backend, ops.chosen["attention"].reason) == ("reference", "asked for")
    others = {name: chosen for name, chosen in ops if name != "attention"}
    assert others == {name: chosen for name, chosen in host_ops() if name != "attention"}


def test_a_type_that_no_kernel_knows_takes_the_reference() -> None:
    ops = select(device=CPU, dtype=torch.float64)
    assert backends(ops) == {"reference"} and "no torch.float64" in ops.chosen["encoder_stack"].reason


@pytest.mark.parametrize(
    ("length", "documents", "attention"),
    [(128, False, "triton"), (129, False, "triton (long)"), (128, True, "triton (long)")],
)
def test_the_plan_of_a_stack_follows_its_shape(length: int, documents: bool, attention: str) -> None:
    """On a device without the CUDA kernels; short rows and documents have an attention each."""
    shape = StackShape(sequences=128, length=length, width=256, heads=4, ffn=1024, documents=documents)
    assert stack_plan(shape, CPU) == {"layers": "by op", "attention": attention, "linear_gelu": "triton"}


@pytest.mark.parametrize("ampere", [(8, 0), (8, 6), (8, 9)], indirect=True, ids=["A100", "RTX 30", "RTX 40"])
@pytest.mark.parametrize(("length", "heads"), [(128, 4), (512, 12)])
def test_gpus_without_hopper_features_run_triton_alone(ampere: torch.device, length: int, heads: int) -> None:
    major, minor = torch.cuda.get_device_capability(ampere)
    assert cuda_missing(ampere) == f"written for Hopper (sm_90), this is sm_{major}{minor}"
    ops = select(device=ampere, dtype=torch.bfloat16)
    assert {name for name, chosen in ops if chosen.backend == "triton"} == TRITON_OPS
    assert f"this is sm_{major}{minor}" in ops.chosen["encoder_stack"].reason
    shape = StackShape(sequences=256, length=length, width=64 * heads, heads=heads, ffn=256 * heads, documents=False)
    attention = "triton" if length <= 128 else "triton (long)"
    assert stack_plan(shape, ampere) == {"layers": "by op", "attention": attention, "linear_gelu": "triton"}
    single = select(device=ampere, dtype=torch.float32)
    assert single.chosen["encoder_stack"].reason.startswith("triton: bf16 only")


# No run's choice reaches the next


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "data")


def electra(*arguments: str) -> str:
    command = [sys.executable, *one_process.program(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


IN_TURN = """
import json, sys
from click.testing import CliRunner
from electra.cli import main
done = [CliRunner().invoke(main, arguments) for arguments in json.loads(sys.argv[1])]
assert not any(one.exit_code for one in done), done[-1].output
print(json.dumps([one.stdout for one in done]))
"""


def in_one_process(*commands: list[str], path: Path) -> list[str]:
    """What each command prints; packages are imported once for all."""
    environment = os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-c", IN_TURN, json.dumps(commands)]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    printed: list[str] = json.loads(done.stdout)
    return printed


@pytest.fixture(scope="module")
def alone(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each choice, each in a process of its own."""
    folder = tmp_path_factory.mktemp("alone")
    for kernels in ("auto", "plain"):
        electra(*tiny_runs.command(data, folder / kernels, *FEW, f"train.kernels={kernels}"))
    return {kernels: folder / kernels for kernels in ("auto", "plain")}


def test_the_two_choices_round_differently(alone: dict[str, Path]) -> None:
    """Or the tests below could not fail."""
    assert (weights(alone["auto"]) != weights(alone["plain"])) == HAS_CPP


@pytest.mark.parametrize("order", ORDERS)
def test_pretraining_one_after_the_other_gives_the_bits_of_each_alone(
    order: tuple[Kernels, Kernels], tmp_path: Path, data: Path, alone: dict[str, Path]
) -> None:
    for kernels in order:
        pretrain(small_config(*FEW, f"train.kernels={kernels}"), data=data, out=tmp_path / kernels)
        assert weights(tmp_path / kernels) == weights(alone[kernels])


FINETUNE = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from test_dispatch import finetuned
from safetensors.torch import save_file
save_file(finetuned(sys.argv[2]), sys.argv[3])
"""


def finetuned(kernels: Kernels) -> dict[str, Tensor]:
    """The weights after a few steps of fine-tuning from the same start."""
    features, labels = toy("classify", 16)
    config = FinetuneConfig(
        precision="fp32", device="cpu", length=24, batch_size=8, epochs=2.0, lr=1e-3, kernels=kernels
    )
    base, spec = tiny_base(), HeadSpec(kind="classify", labels=labels)
    trial = Trial(base.embeddings, base.encoder, spec, features, config=config, seed=0, pad_id=0, device=CPU)
    assert (backends(trial.network.encoder._ops) == {"reference"}) == (kernels == "plain" or not HAS_CPP)
    (done,) = train_together([trial], evaluate=healthy(lambda network: 0.0), stop=Stop())
    return {name: tensor.clone() for name, tensor in done.weights().items()}


def test_fine_tuning_one_after_the_other_gives_the_bits_of_each_alone(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    found: dict[str, dict[str, Tensor]] = {}
    for kernels in ("auto", "plain"):
        script, file = tmp_path / "finetune.py", tmp_path / f"{kernels}.safetensors"
        script.write_text(FINETUNE)
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script), str(ROOT / "tests"), kernels, str(file)]
        subprocess.run(command, env=environment, check=True, timeout=240)
        found[kernels] = load_file(file)

    def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
        return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)

    assert equal(found["auto"], found["plain"]) == (not HAS_CPP)
    for order in ORDERS:
        for kernels in order:
            assert equal(finetuned(kernels), found[kernels]), (order, kernels)


def test_inference_takes_the_choice_of_the_run(tmp_path: Path) -> None:
    """One model in two folders, whose configs differ in `train.kernels` alone."""
    make_run(tmp_path / "auto")
    make_run(tmp_path / "plain", replace(RTD, train=replace(RTD.train, kernels="plain")))
    sentence = "the chef cooked the meal and the dog sat on the mat"
    before: dict[str, Any] = {}
    for kernels in ("auto", "plain", "auto", "plain"):
        loaded, encoder = load_model(tmp_path / kernels), load_pretrained(tmp_path / kernels).encoder
        assert loaded.module.encoder._ops is encoder._ops is host_ops(kernels)  # type: ignore[arg-type]
        found = detect(loaded, sentence).tokens
        assert before.setdefault(kernels, found) == found
    assert [one.probability for one in before["auto"]] == pytest.approx(
        [one.probability for one in before["plain"]], abs=1e-5
    )


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_predictions_take_the_choice_of_fine_tuning(kernels: Kernels, tmp_path: Path) -> None:
    network, about = make_tuned("classify", kernels=kernels)
    save_finetuned(tmp_path / "model", network, tokenizer=Tokenizer(VOCAB), config=SIZE, about=about)
    loaded = load_finetuned(tmp_path / "model")
    assert loaded.network.encoder._ops is loaded.network.head._ops is host_ops(kernels)
    assert load_pretrained(tmp_path / "model").kernels == kernels


# Without the faster implementations


def test_the_reference_alone_is_a_whole_installation(tmp_path: Path, data: Path, alone: dict[str, Path]) -> None:
    """`ops/cpp`, `ops/triton` and `ops/cuda` deleted: everything runs, with the bits of `train.kernels=plain`."""
    package = tmp_path / "package"
    shutil.copytree(ROOT / "src" / "electra", package / "electra", ignore=shutil.ignore_patterns("__pycache__"))
    for backend in ("cpp", "triton", "cuda"):
        shutil.rmtree(package / "electra" / "ops" / backend)
    run = tmp_path / "run"
    arguments = ["detect", "--json", "the dogs are small"]
    commands = (tiny_runs.command(data, run, *FEW), ["doctor", "--json"], [*arguments, "--model", str(run)])
    _, doctor, stripped = in_one_process(*commands, path=package)
    assert weights(run) == weights(alone["plain"])
    found = json.loads(doctor)
    assert {one["backend"] for one in found["ops"]} == {"reference"}
    reasons = {one["op"]: one["reason"] for one in found["ops"]}
    assert "cpp: left out of this installation" in reasons["encoder_stack"]
    assert stripped == electra(*arguments, "--model", str(alone["plain"])) and json.loads(stripped)["tokens"]
