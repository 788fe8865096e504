"""`electra prepare --worker i/n` on one folder: workers are killed and started again, and the bytes are the same."""

from __future__ import annotations

from pathlib import Path

import corpora
import pytest
from tiny_runs import Process, start, wait_for

from electra.shards import build
from electra.shards.build import prepare
from electra.shards.dataset import open_data
from electra.shards.options import PrepareOptions

SLOWLY = """
import sys, time
from electra.cli import main
from electra.shards import build, pool

build.BLOCK_BYTES = 20_000
make = pool.Worker.__call__
def slowly(self, job):
    time.sleep(0.1)
    return make(self, job)
pool.Worker.__call__ = slowly
main(["prepare", sys.argv[1], "--out", sys.argv[2], "--vocab-size", "300", "--workers", "1", "--worker", sys.argv[3]])
"""


def test_promise_08_workers_killed_and_started_again_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, out = corpora.write_corpus(tmp_path / "a.txt", 1200), tmp_path / "data"

    def worker(part: str) -> Process:
        return start([str(texts), str(out), part], ("-c", SLOWLY))

    def units() -> int:
        return len(list(out.glob(".work/units/*.unit")))

    first, second = worker("1/2"), worker("2/2")
    wait_for(lambda: units() >= 2, first)
    first.kill()
    first.communicate()
    said = second.communicate(timeout=120)[0]
    assert second.returncode == 0 and "units wait for other workers" in said, said
    kept = units()
    first = worker("1/2")
    wait_for(lambda: units() > kept, first)
    first.kill()
    first.communicate()
    assert not (out / "data.json").exists()
    last = worker("1/2")
    said = last.communicate(timeout=120)[0]
    assert last.returncode == 0 and "parts from an earlier run" in said, said
    monkeypatch.setattr(build, "BLOCK_BYTES", 20_000)
    prepare([str(texts)], out=tmp_path / "plain", options=PrepareOptions(vocab_size=300), workers=1)
    open_data(out)
    assert corpora.digests(out) == corpora.digests(tmp_path / "plain")
