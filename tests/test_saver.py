"""Checkpoints that are written while the run goes on hold what was there when they were asked for."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
import torch
from torch import Tensor

from electra.checkpoint import store
from electra.checkpoint.saver import Saver
from electra.errors import StorageError


def groups(flat: Tensor) -> dict[str, dict[str, Tensor]]:
    """Two parameters as views of a buffer, and Adam's averages of a buffer each."""

    def named(buffer: Tensor) -> dict[str, Tensor]:
        return {"a.weight": buffer[:6].view(2, 3), "a.bias": buffer[6:]}

    return {"model": named(flat), "average": named(flat * 10), "square": named(flat * 100)}


def test_a_save_holds_the_tensors_of_its_moment(tmp_path: Path) -> None:
    flat, mutated = torch.arange(8.0), Event()
    tensors = groups(flat)
    expected = {group: {name: t.clone() for name, t in named.items()} for group, named in tensors.items()}
    saver = Saver(tmp_path, keep=2)
    saver.save(step=1, tensors=tensors, state={"step": 1}, first=lambda: mutated.wait(10) and None)
    flat.fill_(-1)  # the next step, before a byte was written
    mutated.set()
    saver.save(step=2, tensors=tensors, state={"step": 2}, first=lambda: None)  # waits for the first
    saver.wait()
    first, state = store.load(store.checkpoint_path(tmp_path, 1))
    assert state == {"step": 1} and saver.took_s > 0
    for group, named in expected.items():
        for name, value in named.items():
            assert torch.equal(first[group][name], value)
    assert store.load(store.checkpoint_path(tmp_path, 2))[0]["model"]["a.bias"].eq(-1).all()


def test_a_failed_save_ends_what_comes_next(tmp_path: Path) -> None:
    (tmp_path / store.FOLDER).write_text("in the way")
    saver = Saver(tmp_path, keep=1)
    saver.save(step=1, tensors=groups(torch.ones(8)), state={}, first=lambda: None)
    saver.close()
    with pytest.raises(StorageError, match="could not be saved"):
        saver.check()
    saver.wait()  # raised once
