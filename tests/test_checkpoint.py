"""Checkpoints: whole or absent, whatever happens while one is written; damaged ones are noticed and kept."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpora
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from electra import fsio
from electra.checkpoint import store
from electra.checkpoint.tensors import read_tensors, write_tensors
from electra.errors import CheckpointError

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden" / "checkpoint-v1"
STATE = {"step": 5, "cursor": {"epoch": 1, "offset": 3}, "tokens": 12.0, "elapsed_s": 1.5, "total_steps": None}


def tensors(seed: int) -> dict[str, dict[str, Tensor]]:
    """Numbers that are exact in any floating point, so the same on every machine."""
    shapes = {"embeddings.token.weight": (7, 4), "discriminator.up.bias": (3,), "scalar": ()}
    return {
        group: {
            name: torch.full(shape, seed / 8 - place).cumsum(0) if shape else torch.tensor(seed + place / 4)
            for name, shape in shapes.items()
        }
        for place, group in enumerate(("model", "average", "square"))
    }


def put(run: Path, step: int, *, keep: int = 3) -> Path:
    return store.save(run, step=step, tensors=tensors(step), state=STATE | {"step": step}, keep=keep)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def names(run: Path) -> list[str]:
    return names_in(run / "checkpoints")


def found(run: Path) -> str | None:
    path = store.latest(run)
    return path.name if path else None


def test_a_round_trip_is_bitwise(tmp_path: Path) -> None:
    odd = tensors(5)
    odd["model"]["scalar"] = torch.tensor(float("nan"))
    odd["average"]["discriminator.up.bias"] = torch.tensor([-0.0, float("inf"), 1e-45])
    path = store.save(tmp_path, step=5, tensors=odd, state=STATE, keep=1)
    assert path == tmp_path / "checkpoints" / "step-00000005" == store.latest(tmp_path)
    assert store.step_of(path) == 5
    store.verify(path)
    loaded, state = store.load(path)
    assert state == STATE
    assert {g: set(named) for g, named in loaded.items()} == {g: set(named) for g, named in odd.items()}
    for group, named in odd.items():
        for name, tensor in named.items():
            assert loaded[group][name].shape == tensor.shape
            assert loaded[group][name].numpy().tobytes() == tensor.numpy().tobytes()


def test_saving_again_gives_the_same_bytes_and_touches_nothing(tmp_path: Path) -> None:
    put(tmp_path / "a", 5)
    put(tmp_path / "b", 5)
    assert corpora.digests(tmp_path / "a") == corpora.digests(tmp_path / "b")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")}
    put(tmp_path / "a", 5)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*")} == before


def test_files_are_as_readable_as_any_other(tmp_path: Path) -> None:
    path = put(tmp_path, 5)
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1


def test_the_newest_are_kept_and_only_once_the_new_one_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (5, 10, 15):
        put(tmp_path, step, keep=2)
    assert names(tmp_path) == ["step-00000010", "step-00000015"]
    seen: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(store, "seam", lambda name: seen.append((name, names(tmp_path))))
    put(tmp_path, 20, keep=1)
    assert names(tmp_path) == ["step-00000020"]
    assert [listing for name, listing in seen if name == "before-removal"][0] == [
        "step-00000010",
        "step-00000015",
        "step-00000020",
    ]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip, truncate, Path.unlink], ids=["flip", "truncate", "unlink"])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_promise_09_a_damaged_checkpoint_is_named_skipped_and_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], file: str, damage: Callable[[Path], None]
) -> None:
    put(tmp_path, 5)
    bad = put(tmp_path, 10)
    damage(bad / file)
    digests = corpora.digests(bad)
    assert found(tmp_path) == "step-00000005"
    printed = capfd.readouterr().err
    assert len(printed.splitlines()) == 1 and printed.startswith("warning: skipping a damaged checkpoint: ")
    assert "step-00000010" in printed and (file in printed or file == "manifest.json")
    assert corpora.digests(bad) == digests
    with pytest.raises(CheckpointError) as error:
        store.verify(bad)
    assert error.value.exit_code == 5


def test_promise_09_training_on_never_loses_a_good_one_to_a_damaged_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Retention that counted the damaged step 10 would remove the new step 7, the only good one."""
    put(tmp_path, 5)
    bad = put(tmp_path, 10)
    flip(bad / "model.safetensors")
    digests = corpora.digests(bad)
    put(tmp_path, 7, keep=1)
    assert names(tmp_path) == ["step-00000007", "step-00000010"] and found(tmp_path) == "step-00000007"
    capfd.readouterr()
    put(tmp_path, 10, keep=2)
    assert found(tmp_path) == "step-00000010"
    kept = [name for name in names(tmp_path) if not name.startswith("step-")]
    assert len(kept) == 1 and kept[0].startswith("damaged-step-00000010-")
    assert corpora.digests(tmp_path / "checkpoints" / kept[0]) == digests
    assert f"step-00000010 is damaged and was renamed {kept[0]}" in capfd.readouterr().err
    put(tmp_path, 15, keep=1)
    assert names(tmp_path) == [kept[0], "step-00000015"]


def test_promise_09_a_run_goes_on_before_the_damage_and_puts_it_out_of_the_way(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        put(tmp_path, step)
    (tmp_path / "checkpoints" / "step-00000010" / "state.json").unlink()
    truncate(tmp_path / "checkpoints" / "step-00000015" / "model.safetensors")
    assert store.latest_for_training(tmp_path) == store.checkpoint_path(tmp_path, 5)
    damaged = [name.rsplit("-", 1)[0] for name in names(tmp_path) if name.startswith("damaged")]
    assert damaged == ["damaged-step-00000010", "damaged-step-00000015"]


def test_promise_09_with_nothing_whole_left_a_run_does_not_start_over_by_itself(tmp_path: Path) -> None:
    assert store.latest_for_training(tmp_path) is None
    truncate(put(tmp_path, 5) / "model.safetensors")
    assert store.latest(tmp_path) is None
    with pytest.raises(CheckpointError, match=r"checkpoints: none of its 1 checkpoints can be used \(move the folder"):
        store.latest_for_training(tmp_path)
    assert names(tmp_path) == ["step-00000005"]


@pytest.mark.parametrize(
    "listing",
    [
        [],
        {"files": {}},
        {"format": 1, "files": {}},
        {"format": 1, "files": []},
        {"format": "one", "files": {}},
        {"format": 1, "files": {"../../config.toml": {"bytes": 1, "sha256": ""}}},
        {"format": 1, "files": {"/etc/passwd": {"bytes": 1, "sha256": ""}}},
        {"format": 1, "files": {"state.json": {"sha256": ""}}},
        {"format": 1, "files": {"state.json": 3}},
        {"format": 1, "files": {n: {"bytes": "many", "sha256": ""} for n in sorted(store.FILES)}},
    ],
    ids=[f"case {number}" for number in range(10)],
)
def test_promise_09_a_manifest_of_nonsense_is_damage(tmp_path: Path, listing: Any) -> None:
    put(tmp_path, 5)
    bad = put(tmp_path, 10)
    (bad / "manifest.json").write_text(json.dumps(listing))
    with pytest.raises(CheckpointError, match="manifest.json: "):
        store.verify(bad)
    assert found(tmp_path) == "step-00000005"


def test_other_things_in_the_folder_are_not_checkpoints(tmp_path: Path) -> None:
    put(tmp_path, 5)
    (tmp_path / "checkpoints" / "step-notes").mkdir()
    (tmp_path / "checkpoints" / "step-00000009").write_text("a file")
    assert found(tmp_path) == "step-00000005"
    assert found(tmp_path / "elsewhere") is None


def test_promise_16_a_newer_format_is_refused_not_skipped(tmp_path: Path) -> None:
    """To train on from an older checkpoint would throw away what a newer program did."""
    put(tmp_path, 5)
    manifest = put(tmp_path, 10) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 2}))
    for look in (store.latest, store.latest_for_training):
        with pytest.raises(
            CheckpointError, match=r"format 2 is newer than this program's 1 \(upgrade electra\)"
        ) as error:
            look(tmp_path)
        assert error.value.exit_code == 5
    with pytest.raises(CheckpointError, match="newer"):
        put(tmp_path, 10)


def test_promise_16_checkpoints_of_format_1_load() -> None:
    """Written by version 0.1; every later version must read these bytes."""
    store.verify(GOLDEN)
    loaded, state = store.load(GOLDEN)
    assert state == STATE
    for group, named in tensors(1).items():
        for name, tensor in named.items():
            assert loaded[group][name].numpy().tobytes() == tensor.numpy().tobytes()


def test_tensors_must_be_the_expected_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"encoder.a": torch.zeros(2, 3), "encoder.b": torch.zeros(1)})
    sizes = {"encoder.a": torch.Size((2, 3)), "encoder.b": torch.Size((1,))}
    assert set(read_tensors(path, expect=sizes)) == set(sizes)
    for expect, message in [
        (sizes | {"encoder.c": torch.Size(())}, "tensor 'encoder.c' is missing"),
        (sizes | {"generator.c": torch.Size(()), "head.x": torch.Size(())}, "has no generator and no head"),
        ({"encoder.a": torch.Size((2, 3))}, "tensor 'encoder.b' is not expected"),
        (sizes | {"encoder.a": torch.Size((3, 2))}, r"tensor 'encoder.a' is \(2, 3\), not \(3, 2\)"),
    ]:
        with pytest.raises(CheckpointError, match=f"x.safetensors: {message}"):
            read_tensors(path, expect=expect)
    path.write_bytes(b"\x80\x04not a tensor file")
    with pytest.raises(CheckpointError, match="x.safetensors: cannot be read"):
        read_tensors(path)
    with pytest.raises(CheckpointError, match="none.safetensors: cannot be read"):
        read_tensors(tmp_path / "none.safetensors")


def test_a_file_may_be_written_again_from_its_own_tensors(tmp_path: Path) -> None:
    """They are views of the file: cutting it first would end the process by a bus error."""
    whole = torch.arange(300_000, dtype=torch.float32)
    write_tensors(tmp_path / "file", {"a": whole})
    write_tensors(tmp_path / "file", {"b": read_tensors(tmp_path / "file")["a"]})
    assert torch.equal(read_tensors(tmp_path / "file")["b"], whole)


def test_files_are_the_bytes_that_safetensors_writes(tmp_path: Path) -> None:
    several = {
        "b": torch.randn(5, 3), "a": torch.arange(4), "half": torch.randn(3).bfloat16(), "none": torch.zeros(0, 2),
        "é": torch.tensor(1.5), "transposed": torch.randn(2, 3).T,
    }  # fmt: skip
    write_tensors(tmp_path / "ours", several)
    save_file({name: tensor.contiguous() for name, tensor in several.items()}, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_process_reads_its_rows_of_the_averages(tmp_path: Path) -> None:
    path, whole = put(tmp_path, 5), tensors(5)
    name = "embeddings.token.weight"
    loaded, _ = store.load(path, rows=lambda n: slice(2, 5) if n == name else slice(None))
    assert torch.equal(loaded["model"][name], whole["model"][name])
    for group in ("average", "square"):
        assert torch.equal(loaded[group][name], whole[group][name][2:5])
        assert torch.equal(loaded[group]["scalar"], whole[group]["scalar"])


SAVE = """
import os, signal, sys
from pathlib import Path
import torch
from electra import fsio
from electra.checkpoint import store

run, cases = Path(sys.argv[1]), sys.argv[2:]
tensors = {group: {"w": torch.full((50,), 3.0)} for group in ("model", "average", "square")}
for case in cases:  # one process, a child a case: importing torch takes longer than all of them
    name, _, count = case.partition(":")
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, case
        continue
    left = [int(count)]
    def seam(here):
        left[0] -= here == name
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    fsio.seam = store.seam = seam
    store.save(run / case, step=15, tensors=tensors, state={"step": 15}, keep=2)
    os._exit(1)
"""
BEFORE = ["file-written:1", "file-renamed:1", "file-written:2", "file-renamed:2", "dir-written:1", "dir-synced:1"]
BEFORE += ["model-written:1", "optimizer-written:1"]
REMOVING = "renamed-for-removal:1"
AFTER = ["dir-renamed:1", "before-removal:1", REMOVING]


def test_promise_08_kill_9_at_every_seam_of_a_save(tmp_path: Path) -> None:
    for case in BEFORE + AFTER:
        put(tmp_path / case, 5)
        put(tmp_path / case, 10)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", SAVE, str(tmp_path), *BEFORE, *AFTER], env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    for case in BEFORE + AFTER:
        run = tmp_path / case
        assert found(run) == ("step-00000015" if case in AFTER else "step-00000010"), case
        leftovers = [name for name in names(run) if name.startswith(".tmp-")]
        assert bool(leftovers) == (case in (*BEFORE, REMOVING)), case
        store.clean(run)
        kept = [10, 15] if case == REMOVING else [5, 10, 15] if case in AFTER else [5, 10]
        assert names(run) == [f"step-{step:08d}" for step in kept]
        for path in (run / "checkpoints").iterdir():
            store.verify(path)
        store.retain(run, store.latest(run) or run, keep=2)
        assert names(run) == [f"step-{step:08d}" for step in kept[-2:]], case
        put(run, 15, keep=2)
        put(run, 20, keep=2)
        assert names(run) == ["step-00000015", "step-00000020"], case


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 160 KB where this user may mount one, otherwise a limit on the size of a file."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=160k", "electra-test", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        yield disk
        subprocess.run(["umount", str(disk)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_promise_10_a_full_disk_keeps_the_checkpoint_before(full_disk: Path) -> None:
    put(full_disk, 5)
    before = corpora.digests(full_disk)
    large = {group: {"w": torch.ones(60_000)} for group in ("model", "average", "square")}
    with pytest.raises(CheckpointError) as error:
        store.save(full_disk, step=10, tensors=large, state=STATE, keep=1)
    assert error.value.exit_code == 4 and "\n" not in str(error.value)
    assert "step-00000010: could not be saved: model.safetensors" in str(error.value)
    assert "the checkpoint before it is untouched" in str(error.value)
    assert corpora.digests(full_disk) == before and found(full_disk) == "step-00000005"
    put(full_disk, 15, keep=1)
    assert names(full_disk) == ["step-00000015"]


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7, 8])
def test_promise_10_no_space_at_any_point_of_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    put(tmp_path, 5)
    before = corpora.digests(tmp_path)
    calls = [0]

    def seam(name: str) -> None:
        calls[0] += 1
        if calls[0] == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(fsio, "seam", seam)
        patch.setattr(store, "seam", seam)
        with pytest.raises(
            CheckpointError, match="could not be saved: (manifest.json: |state.json: )?No space left on device"
        ):
            put(tmp_path, 10, keep=1)
    assert corpora.digests(tmp_path) == before
    assert put(tmp_path, 10, keep=1) == store.latest(tmp_path)


def test_promise_10_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"step-00000005: could not be saved: .*(exists|directory)"):
        put(tmp_path, 5)


def test_commit_dir_leaves_nothing_after_an_exception(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), fsio.commit_dir(tmp_path / "out") as aside:
            (aside / "deep" / "er").mkdir(parents=True)
            (aside / "deep" / "er" / "file").write_text("x")
            raise error
        assert list(tmp_path.iterdir()) == []
    with fsio.commit_dir(tmp_path / "a" / "out") as aside:
        (aside / "deep").mkdir()
        (aside / "deep" / "file").write_text("x")
        assert not (tmp_path / "a" / "out").exists()
    assert corpora.digests(tmp_path).keys() == {"a/out/deep/file"}
    with pytest.raises(OSError, match="not empty"), fsio.commit_dir(tmp_path / "a" / "out") as aside:
        (aside / "new").write_text("y")
    assert corpora.digests(tmp_path).keys() == {"a/out/deep/file"}


def test_commit_dir_removes_what_a_killed_process_left_and_nothing_else(tmp_path: Path) -> None:
    """A child that is killed while it writes, a sibling that still writes, and names that are not ours."""
    pid = os.fork()
    if not pid:
        with fsio.commit_dir(tmp_path / "out") as aside:
            (aside / "file").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    (left,) = names_in(tmp_path)
    others = [".tmp-out-x", ".tmp-output-0123abcd", ".tmp-out-0123abcd9"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".tmp-out-0123abcd").write_text("a file")
    with fsio.commit_dir(tmp_path / "out") as alive:
        assert left not in names_in(tmp_path)
        with fsio.commit_dir(tmp_path / "out") as second:
            (second / "file").write_text("y")
        assert alive.is_dir()
        (tmp_path / "out" / "file").unlink()
    assert names_in(tmp_path) == sorted([*others, ".tmp-out-0123abcd", "out"])


def test_write_atomic_keeps_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "x.json"
    fsio.write_json(path, {"é": 1})
    assert fsio.read_json(path) == {"é": 1} and path.read_bytes() == '{\n  "é": 1\n}\n'.encode()

    def fail(name: str) -> None:
        raise OSError(errno.ENOSPC, name)

    monkeypatch.setattr(fsio, "seam", fail)
    with pytest.raises(OSError, match="file-written"):
        fsio.write_atomic(path, b"new")
    assert fsio.read_json(path) == {"é": 1} and [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".tmp-a-0123" / "x").mkdir(parents=True)
    (tmp_path / ".tmp-b-0123").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "tmp-c").mkdir()
    fsio.remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "tmp-c"]
    fsio.remove_leftovers(tmp_path / "none")


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a/.."])
def test_promise_18_a_name_cannot_leave_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="unsafe file name"):
        fsio.safe_join(tmp_path, name)


def test_a_safe_name_is_joined(tmp_path: Path) -> None:
    assert fsio.safe_join(tmp_path, "a/b..c") == tmp_path / "a" / "b..c"


def test_a_folder_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    with fsio.only_one(tmp_path), pytest.raises(BlockingIOError), fsio.only_one(tmp_path):
        pass
    with fsio.only_one(tmp_path):
        pass
