"""Device, precision, peak table and facts."""

from __future__ import annotations

import getpass
import json
import os
import platform
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from electra import hardware
from electra.cli import doctor, main
from electra.errors import ConfigError, pip_install
from electra.ops import dispatch
from electra.ops.dispatch import OPS, select

X86 = "processor : 0\nmodel name : Some CPU @ 2.70GHz\nflags : fpu sse avx512f {}\n"
ARM = "processor : 0\nFeatures : fp asimd {}\nCPU part : 0xd0c\n"


@pytest.mark.parametrize(
    ("text", "native"),
    [
        (X86.format("amx_bf16 amx_tile"), True),
        (X86.format("avx512_bf16"), True),
        (X86.format("avx512_fp16 amx_tile"), False),
        (ARM.format("bf16 i8mm"), True),
        (ARM.format("asimddp"), False),
        ("", False),
    ],
)
def test_cpu_precision_follows_the_instructions(text: str, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: text)
    cpu = torch.device("cpu")
    assert hardware.cpu_has_bf16() is native
    assert hardware.compute_dtype("auto", cpu) == (torch.bfloat16 if native else torch.float32)
    assert hardware.compute_dtype("fp32", cpu) == torch.float32
    assert hardware.compute_dtype("bf16", cpu) == torch.bfloat16


@pytest.mark.parametrize(("sm", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)])
def test_gpu_precision_follows_the_generation(
    sm: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: sm)
    assert hardware.compute_dtype("auto", torch.device("cuda", 0)) == dtype


def test_device_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hardware.device("auto") == hardware.device("cpu") == torch.device("cpu")
    with pytest.raises(
        ConfigError, match=r"train\.device: this machine has no usable CUDA device \(train\.device=cpu\)"
    ):
        hardware.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert hardware.device("auto") == hardware.device("cuda") == torch.device("cuda", 1)
    assert hardware.device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("NVIDIA H200", 989e12, 67e12),
        ("NVIDIA H100 80GB HBM3", 989e12, 67e12),
        ("NVIDIA H100 PCIe", 756e12, 51e12),
        ("NVIDIA A100-SXM4-40GB", 312e12, 19.5e12),
        ("NVIDIA A10G", 70e12, 35e12),
        ("NVIDIA L40S", 362e12, 91.6e12),
        ("NVIDIA L4", 121e12, 30.3e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12, 82.6e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 3090 Ti", 71e12, 35.6e12),
        ("Tesla V100-SXM2-16GB", None, 15.7e12),
        ("Tesla T4", None, 8.1e12),
        ("Some Future GPU", None, None),
    ],
)
def test_peak_by_name(name: str, bf16: float | None, fp32: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    gpu = torch.device("cuda", 0)
    assert hardware.peak_flops(gpu, torch.bfloat16) == (bf16 and pytest.approx(bf16))
    assert hardware.peak_flops(gpu, torch.float32) == (fp32 and pytest.approx(fp32))
    assert hardware.peak_flops(torch.device("cpu"), torch.float32) is None


def test_promise_19_facts_name_no_person_host_path_or_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret-0123456789")
    text = json.dumps(hardware.facts())
    private = ["secret-0123456789", os.getcwd(), str(Path.home()), sys.prefix, platform.node()]
    if len(getpass.getuser()) > 3 and getpass.getuser() != "root":
        private.append(getpass.getuser())
    for word in private:
        assert len(word) < 3 or word not in text, word
    facts = json.loads(text)
    assert facts["packages"]["torch"] == torch.__version__ and facts["cores"] >= 1 and facts["memory_bytes"] > 10**8


def test_git_sha_of_the_checkout() -> None:
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        pytest.skip("the tests do not run from a git checkout")
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert (hardware.git_sha() or "").removesuffix("-dirty") == head.stdout.strip()


def test_doctor_lines_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(main, ["doctor"])
    assert shown.exit_code == 0
    for word in (
        "electra",
        "torch",
        " core",
        "GFLOP/s measured",
        "disk free",
        "compiler",
        "GPU kernels",
        "[data]",
        "trains on",
    ):
        assert word in shown.output
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    assert found["matmul_flops"] > 1e8 and found["disk_free_bytes"] > 0
    assert set(found["extras"]) == set(doctor.EXTRAS)


def test_doctor_prints_op_by_op_what_runs_here_and_why() -> None:
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    device, dtype = torch.device(found["device"]), getattr(torch, found["precision"])
    chosen = [(name, one.backend, one.reason) for name, one in select(device=device, dtype=dtype)]
    assert [(one["op"], one["backend"], one["reason"]) for one in found["ops"]] == chosen
    lines = CliRunner().invoke(main, ["doctor"]).output.splitlines()
    header = next(number for number, line in enumerate(lines) if line.split() == ["op", "backend", "reason"])
    table = [line.split(maxsplit=2) for line in lines[header + 1 :]]
    assert [tuple(row) for row in table] == chosen and len(table) == len(OPS)


def test_doctor_says_how_to_install_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda module: None)
    monkeypatch.setattr(doctor, "compiler", lambda: None)
    shown = CliRunner().invoke(main, ["doctor"]).output
    assert f"missing pyarrow, zstandard, datasets: {pip_install('data')}" in shown and "none found" in shown


def test_doctor_knows_the_extras_of_the_project_file() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = {
        extra: {requirement.partition(">")[0] for requirement in requirements}
        for extra, requirements in project["optional-dependencies"].items()
        if extra != "dev"
    }
    assert declared == {extra: set(packages) for extra, (packages, _) in doctor.EXTRAS.items()}


def test_what_triton_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = dispatch.triton_missing.__wrapped__  # as if asked for the first time
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert missing() == "no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
    assert missing() == "left out of this installation"
    monkeypatch.setattr(dispatch, "find_spec", lambda name: None if name == "triton" else name)
    assert missing() == "triton is not installed"
    monkeypatch.setattr(dispatch, "find_spec", lambda name: name)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert missing() == "no C compiler (gcc or clang)"
    monkeypatch.setenv("CC", sys.executable)
    assert missing() == ""


@pytest.mark.gpu
def test_the_gpu_is_known() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = hardware.device("auto")
    assert hardware.peak_flops(device, hardware.compute_dtype("auto", device))


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()
    or resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY,
    reason="needs a Linux with large pages, and addresses without a limit",
)
def test_what_a_step_frees_is_kept_in_large_pages() -> None:
    """In a process of its own, since the C library keeps what it was told."""
    program = """
import torch
from electra.hardware import keep_freed_memory
keep_freed_memory()
keep_freed_memory()
some = [torch.empty(1 << 22) for _ in range(20)]
found, addresses = [], [one.data_ptr() for one in some]
for line in open("/proc/self/smaps", encoding="utf-8"):
    words = line.split()
    if "-" in words[0] and len(words) >= 5 and not words[0].endswith(":"):
        start, end = (int(edge, 16) for edge in words[0].split("-"))
    elif words[0] == "VmFlags:" and any(start <= address < end for address in addresses):
        found.append("hg" in words)
assert any(found), found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
