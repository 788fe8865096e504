"""Compiled code between runs: only this user's own, whole, is ever loaded."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from electra import compiled_cache
from electra.compiled_cache import cache_path, load_library, read_code, write_code

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="compiled ops are Linux's")
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
OTHER = 65534
"""Another user: nobody."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "electra"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_kept_comes_back(cache: Path) -> None:
    path = cache_path("ops", "source", ".cubin")
    assert path.parent == cache and read_code(path) is None
    write_code(path, b"machine code")
    assert read_code(path) == b"machine code" and mode(cache) == 0o700
    assert cache_path("ops", "another source", ".cubin") != path


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "no sum", "other sum", "a sum of rubbish"])
def test_promise_18_damaged_code_is_not_loaded(cache: Path, damage: str) -> None:
    path = cache_path("ops", "source", ".cubin")
    code = bytes(range(256)) * 40
    write_code(path, code)
    beside = path.with_name(path.name + ".sha256")
    if damage == "truncated":
        path.write_bytes(code[:-1])
    elif damage == "flipped":
        path.write_bytes(code[:99] + bytes([code[99] ^ 1]) + code[100:])
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "no sum":
        beside.unlink()
    else:
        beside.write_bytes(b"0" * 64 if damage == "other sum" else b"\xff" * 100)
    assert read_code(path) is None
    write_code(path, code)
    assert read_code(path) == code


def test_promise_17_code_that_others_can_write_is_not_loaded(cache: Path) -> None:
    path = cache_path("ops", "source", ".cubin")
    write_code(path, b"machine code")
    for file in (path, path.with_name(path.name + ".sha256")):
        file.chmod(0o666)
        assert read_code(path) is None
        file.chmod(0o600)
    assert read_code(path) == b"machine code"


@needs_root
def test_promise_17_code_of_another_user_is_not_loaded(cache: Path) -> None:
    path = cache_path("ops", "source", ".cubin")
    write_code(path, b"machine code")
    for file in (path, path.with_name(path.name + ".sha256")):
        os.chown(file, OTHER, OTHER)
        assert read_code(path) is None
        os.chown(file, 0, 0)
    assert read_code(path) == b"machine code"


def test_a_folder_that_was_open_to_others_is_closed(cache: Path) -> None:
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)
    assert cache_path("ops", "source", ".so").parent == cache and mode(cache) == 0o700


@needs_root
def test_promise_17_a_folder_of_another_user_is_not_used(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cache.mkdir()
    os.chown(cache, OTHER, OTHER)
    compiled_cache._private_folder.cache_clear()
    private = cache_path("ops", "source", ".so").parent
    assert private != cache and mode(private) == 0o700 and private.stat().st_uid == os.geteuid()
    assert "no cache for compiled code" in capfd.readouterr().err
    assert cache_path("ops", "source", ".so").parent == private and list(cache.iterdir()) == []


def library(folder: Path, answer: int) -> bytes:
    source, made = folder / "answer.cpp", folder / "answer.so"
    source.write_text(f'extern "C" int answer() {{ return {answer}; }}\n')
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made.read_bytes()


@needs_compiler
def test_promise_18_a_truncated_library_ends_in_none_not_in_sigbus(cache: Path, tmp_path: Path) -> None:
    path, code = cache_path("answer", "source", ".so"), library(tmp_path, 42)
    for size in (0, 100, 4096, len(code) // 2, len(code) - 1):
        write_code(path, code)
        os.truncate(path, size)
        assert load_library(path) is None
    write_code(path, code)
    loaded = load_library(path)
    assert isinstance(loaded, ctypes.CDLL) and loaded.answer() == 42


@needs_compiler
def test_promise_17_a_planted_library_is_not_executed(cache: Path, tmp_path: Path) -> None:
    """One that stands in the place of ours, with its true sum beside it, put there by another."""
    path = cache_path("answer", "source", ".so")
    write_code(path, library(tmp_path, 42))
    planted = library(tmp_path, 666)
    path.write_bytes(planted)
    assert load_library(path) is None
    if os.geteuid() == 0:
        write_code(path, planted)
        for file in (path, path.with_name(path.name + ".sha256")):
            os.chown(file, OTHER, OTHER)
        assert load_library(path) is None


@needs_compiler
def test_promise_18_the_ops_are_built_again_where_the_cache_is_damaged(tmp_path: Path) -> None:
    """In a process of its own: a truncated library used to end it with SIGBUS."""
    (tmp_path / "one.cpp").write_text('extern "C" int answer() { return 42; }\n')
    program = (
        "import sys; from pathlib import Path; from electra.ops.cpp import library\n"
        "library.SOURCES = Path(sys.argv[1])\n"
        "assert not library.missing(), library.missing()\n"
        "print(library._library().answer())\n"
    )
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    for size in (4096, None):
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
        (made,) = (tmp_path / "electra").glob("*.so")
        if size is not None:
            os.truncate(made, size)
