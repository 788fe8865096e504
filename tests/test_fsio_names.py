"""A disk that does not take a file: the error names what the user asked for, never what is written aside."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from electra import fsio
from electra.errors import DataError


def test_a_full_disk_names_the_file_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def seam(name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fsio, "seam", seam)
    with pytest.raises(OSError) as caught:
        fsio.write_atomic(tmp_path / "page.html", b"page")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "page.html"))
    with pytest.raises(OSError) as caught, fsio.commit_dir(tmp_path / "model"):
        pass
    assert caught.value.filename == str(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_what_is_inside_a_folder_is_named_where_it_would_be(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, fsio.commit_dir(tmp_path / "run") as aside:
        (aside / "a" / "b").write_bytes(b"")
    assert caught.value.filename == str(tmp_path / "run" / "a" / "b")
    message = f"{tmp_path}/run/config.json: could not be written"
    with pytest.raises(DataError, match=message), fsio.commit_dir(tmp_path / "run") as aside:
        raise DataError(aside / "config.json", "could not be written")


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError) as caught, fsio.commit_dir(tmp_path / "run"):
        raise BlockingIOError(errno.EAGAIN, "busy")
    assert caught.value.filename is None
