"""Manifests: files replaced by one process while others read them."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from electra import manifest

CONTENTS = [{"results.json": bytes([48 + number]) * (number + 1)} for number in range(5)]


def read(folder: Path) -> bytes:
    found = manifest.read_manifest(folder)
    assert found is not None
    found.verify("results.json")
    return (folder / "results.json").read_bytes()


def test_a_reader_may_finish_what_a_writer_is_committing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest.commit_files(tmp_path, CONTENTS[0])
    seen = []

    def look(seam: str) -> None:
        seen.append((seam, read(tmp_path)))

    monkeypatch.setattr(manifest, "seam", look)
    manifest.commit_files(tmp_path, CONTENTS[1])
    assert seen == [("files-staged", b"0"), ("files-listed", b"11"), ("file-replaced", b"11")]
    assert sorted(os.listdir(tmp_path)) == ["manifest.json", "results.json"]


def test_a_commit_between_a_readers_two_reads_is_no_damage(tmp_path: Path) -> None:
    manifest.commit_files(tmp_path, CONTENTS[0])
    before = manifest.read_manifest(tmp_path)
    assert before is not None
    manifest.commit_files(tmp_path, CONTENTS[1])
    before.verify("results.json")
    (tmp_path / "results.json").write_bytes(b"10")
    with pytest.raises(manifest.CheckpointError, match="is damaged"):
        before.verify("results.json")


def test_a_commit_of_what_was_there_before_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of one commit finds the file of a second, then the manifest of a third that lists what the first did."""
    manifest.commit_files(tmp_path, CONTENTS[0])
    before = manifest.read_manifest(tmp_path)
    assert before is not None
    manifest.commit_files(tmp_path, CONTENTS[1])
    read_manifest = manifest.read_manifest

    def commit_first(*arguments: Any, **options: Any) -> manifest.Manifest | None:
        monkeypatch.setattr(manifest, "read_manifest", read_manifest)
        manifest.commit_files(tmp_path, CONTENTS[0])
        return read_manifest(*arguments, **options)

    monkeypatch.setattr(manifest, "read_manifest", commit_first)
    before.verify("results.json")
    assert (tmp_path / "results.json").read_bytes() == b"0"


def write(folder: Path, times: int) -> None:
    for number in range(times):
        manifest.commit_files(folder, CONTENTS[number % len(CONTENTS)])


def test_promise_14_readers_of_a_folder_being_written_see_whole_files(tmp_path: Path) -> None:
    """A reader that is quicker to finish a commit must not break the writer."""
    manifest.commit_files(tmp_path, CONTENTS[0])
    writer = multiprocessing.get_context("fork").Process(target=write, args=(tmp_path, 200))
    writer.start()
    try:
        while writer.is_alive():
            assert {"results.json": read(tmp_path)} in CONTENTS
    finally:
        writer.join()
    assert writer.exitcode == 0
