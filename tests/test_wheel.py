"""A wheel, built and installed offline into a clean environment, runs; on other platforms one line says so."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import electra
from electra import hardware
from electra.errors import ConfigError
from electra.platforms import require_supported

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    [built] = out.glob("*.whl")
    return built


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    assert wheel.name == f"electra-{electra.__version__}-py3-none-any.whl"
    inside = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src"
    wanted = {
        path.relative_to(package).as_posix()
        for path in (package / "electra").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= inside and "electra/py.typed" in wanted
    assert not any(name.startswith(("tests/", "docs/", "src/")) for name in inside)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of a new environment, which has the wheel and sees this one's dependencies."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install"),
            *("--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", str(wheel)),
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    # Only as a path: what is installed there in editable mode stays out.
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return place / "bin"


def run(*command: object, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(one) for one in command], cwd=cwd, env=clean, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_program_runs(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "electra", "--version", cwd=tmp_path).strip().endswith(electra.__version__)
    presets = run(installed / "electra", "config", "presets", cwd=tmp_path)
    assert {"tiny", "small", "base", "large"} <= {line.split()[0] for line in presets.splitlines()}
    assert run(installed / "python", "-m", "electra", "--version", cwd=tmp_path).startswith("electra")


def test_the_installed_package_gives_the_api(installed: Path, tmp_path: Path) -> None:
    program = "import electra; print(electra.__file__); print(electra.load.__module__, electra.pretrain.__name__)"
    where, names = run(installed / "python", "-c", program, cwd=tmp_path).splitlines()
    assert Path(where).is_relative_to(installed.parent), "not the source tree"
    assert names == "electra.api pretrain"


def test_windows_is_refused_in_one_line() -> None:
    for platform in ("linux", "darwin"):
        require_supported(platform)
    with pytest.raises(ConfigError, match=r"^Windows: is not supported: .* fcntl \(use Linux, macOS or WSL 2\)$"):
        require_supported("win32")
    program = (
        "import sys, click.testing; sys.platform = 'win32'; from electra.cli import main; main(['config', 'presets'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("electra: error: Windows: is not supported")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device comes first")
def test_apple_gpus_are_named_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    hardware._say_once.cache_clear()
    assert [hardware.device("auto").type, hardware.device("auto").type] == ["cpu", "cpu"]
    assert capsys.readouterr().err.splitlines() == ["Apple GPUs are not supported: computing on the CPU"]
    hardware._say_once.cache_clear()
    hardware.device("cpu")
    assert capsys.readouterr().err == ""
