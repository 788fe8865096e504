"""What this machine is: where to compute, in which precision, how fast it could be, and facts for run.json."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra import __version__
from electra.errors import ConfigError
from electra.progress import counted, say

if TYPE_CHECKING:
    import torch

_IMPORTED = time.monotonic()
_SLOWEST_START_S = 60.0  # of an interpreter; more means that the system's figure is not to be trusted
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h
_MADV_HUGEPAGE, _HUGE_PAGE = 14, 1 << 21  # from Linux's mman.h
_LARGEST_FROM_HEAP, _HEAP_AT_ONCE, _MOST_FREE_BLOCKS = 1 << 25, 1 << 30, 64

PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "transformers", "triton")

# Dense peak in TFLOP/s from the vendor's data sheets: bf16 tensor cores with fp32 sums, then plain fp32.
PEAK_TFLOPS: dict[str, tuple[float | None, float]] = {
    "B200": (2250, 75),
    "GH200": (989, 67),
    "H200": (989, 67),
    "H100 NVL": (835, 60),
    "H100 PCIe": (756, 51),
    "H100": (989, 67),
    "H800": (989, 67),
    "H20": (148, 44),
    "A100": (312, 19.5),
    "A800": (312, 19.5),
    "A40": (149.7, 37.4),
    "A30": (165, 10.3),
    "A10": (125, 31.2),
    "A10G": (70, 35),
    "RTX A6000": (154.8, 38.7),
    "RTX 6000 Ada": (364.2, 91.1),
    "L40S": (362, 91.6),
    "L40": (181, 90.5),
    "L4": (121, 30.3),
    "RTX 5090": (209.5, 104.8),
    "RTX 4090": (165.2, 82.6),
    "RTX 4080": (97.5, 48.7),
    "RTX 3090": (71, 35.6),
    "RTX 3080": (59.5, 29.8),
    "V100": (None, 15.7),
    "T4": (None, 8.1),
}


def device(choice: str) -> torch.device:
    """The device to train on: `cuda` or `cpu` as asked, or for `auto` the first that is there."""
    import torch

    if choice == "cpu" or (choice == "auto" and not torch.cuda.is_available()):
        if choice == "auto" and torch.backends.mps.is_available():
            _say_once("Apple GPUs are not supported: computing on the CPU")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("train.device", "this machine has no usable CUDA device", fix="train.device=cpu")
    return torch.device("cuda", torch.cuda.current_device())


@cache
def _say_once(line: str) -> None:
    say(line)


def compute_dtype(choice: str, device: torch.device) -> torch.dtype:
    """bf16 or fp32 as asked, or for `auto` bf16 exactly where the hardware multiplies it natively."""
    import torch

    if choice == "auto":
        native = torch.cuda.get_device_capability(device) >= (8, 0) if device.type == "cuda" else cpu_has_bf16()
        return torch.bfloat16 if native else torch.float32
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[choice]


def cpu_has_bf16() -> bool:
    """Whether this CPU has bf16 matrix instructions (AMX, AVX-512 or ARM)."""
    return bool({"amx_bf16", "avx512_bf16", "bf16"} & _cpu_flags(_cpuinfo()))


@cache
def keep_freed_memory() -> None:
    """Let the C library keep what a CPU step frees, and in large pages where Linux has them.

    Fetching fresh pages for every tensor costs a tenth of the step, finding small ones a twentieth.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
        _grow_heap(libc)


def _grow_heap(libc: ctypes.CDLL) -> None:
    """Take addresses for the next tensors, and ask for large pages there; memory is taken when it is used."""
    import resource

    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    before = libc.sbrk(0)
    taken: list[int] = []
    libc.mallopt(_M_TOP_PAD, _HEAP_AT_ONCE)
    while libc.sbrk(0) == before and len(taken) < _MOST_FREE_BLOCKS:  # what is free already is given out first
        taken.append(libc.malloc(_LARGEST_FROM_HEAP // 2))
    libc.mallopt(_M_TOP_PAD, 0)
    for block in taken:
        libc.free(block)
    start = -(-before // _HUGE_PAGE) * _HUGE_PAGE
    if (size := libc.sbrk(0) - start) > 0:
        libc.madvise(start, size, _MADV_HUGEPAGE)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """The data sheet's dense FLOP/s of a GPU in this precision; None where it is not known."""
    import torch

    if device.type != "cuda":
        return None
    return named_peak(torch.cuda.get_device_name(device), bf16=dtype == torch.bfloat16)


def named_peak(name: str, *, bf16: bool) -> float | None:
    """Dense FLOP/s of a GPU by its name."""
    if "Laptop" in name:  # sold under the same name at a fraction of the power
        return None
    for known in sorted(PEAK_TFLOPS, key=len, reverse=True):
        if re.search(rf"\b{known}\b", name):
            tflops = PEAK_TFLOPS[known][0 if bf16 else 1]
            return None if tflops is None else tflops * 1e12
    return None


def process_began() -> float:
    """When this process started, by `time.monotonic`; where the system does not say, when this module was imported."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    began = time.monotonic() - age_s
    return began if 0 <= _IMPORTED - began <= _SLOWEST_START_S else _IMPORTED


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes(device: torch.device | None = None) -> int | None:
    """Memory that this process may use: a GPU's, or the machine's, or its container's limit."""
    if device is not None and device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        try:
            total = min(total, int(limit.read_text()))
        except (OSError, ValueError):
            continue
    return total


def free_bytes(device: torch.device) -> int:
    """Memory that this process may still take: of a GPU, or of the machine, its container or this process's limit."""
    if device.type == "cuda":
        import torch

        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    import resource

    status, machine = _kib("/proc/self/status"), _kib("/proc/meminfo")
    free = [machine["MemAvailable"]] if "MemAvailable" in machine else []
    if (total := memory_bytes()) is not None:
        free.append(total - status.get("VmRSS", 0))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        free.append(limit - status.get("VmSize", 0))
    return max(0, min(free, default=0))


def _kib(path: str) -> dict[str, int]:
    """The sizes in a file of /proc, in bytes; none where there is no such file."""
    try:
        text = Path(path).read_text()
    except OSError:
        return {}
    return {name: int(size) * 2**10 for name, size in re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE)}


def peak_resident_bytes() -> int:
    """The most memory that this process has held; not what the one that started it had, which getrusage hands on."""
    if (highest := _kib("/proc/self/status").get("VmHWM")) is not None:
        return highest
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10  # macOS counts bytes, others KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def facts() -> dict[str, Any]:
    """Versions and hardware for run.json; nothing that names a person, a host, a path or a setting of the shell."""
    import torch

    gpus = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            gpus.append({"name": about.name, "memory_bytes": about.total_memory, "sm": f"{about.major}.{about.minor}"})
    return {
        "electra": __version__,
        "git": git_sha(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := package_version(name))},
        "cuda": torch.version.cuda if gpus else None,
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpu_bf16": cpu_has_bf16(),
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "gpus": gpus,
    }


def machine_of(facts: Mapping[str, Any]) -> str:
    """What a run computed on, by the facts of its run.json: the first GPU's name, or the CPU's with its cores."""
    gpus = facts.get("gpus")
    return str(gpus[0]["name"]) if gpus else f"{facts.get('cpu', 'CPU')}, {counted(facts.get('cores', '?'), 'core')}"


def package_version(name: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    text = _cpuinfo()
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    part = re.search(r"^CPU part\s*:\s*(\S+)$", text, re.MULTILINE)
    return named[1] if named else f"ARM part {part[1]}" if part else platform.processor() or platform.machine()


@cache
def git_sha() -> str | None:
    """The commit of the checkout that this code runs from, `-dirty` where it was changed; None without one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""


def _cpu_flags(text: str) -> set[str]:
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return set(found[1].split()) if found else set()
