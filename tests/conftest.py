"""One thread a test process, repeatable property tests, and no silently skipped promise."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two test processes share two cores
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("ELECTRA_DEBUG", None)

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton: fused kernels run as NumPy

# A shell that starts the tests in the background has Ctrl-C ignored, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("electra", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("electra")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """ELECTRA_SHARD=i/n leaves every n-th test: the convergence gate runs several processes of them.

    Seven of the ten languages are trained where ELECTRA_LANGUAGES=all asks for it (`make languages`).
    """
    if os.environ.get("ELECTRA_LANGUAGES") != "all":
        items[:] = [item for item in items if item.get_closest_marker("languages") is None]
    if shard := os.environ.get("ELECTRA_SHARD"):
        number, count = map(int, shard.split("/"))
        items[:] = items[number::count]


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device of a machine that says it has an Ampere GPU: which ops are chosen there, without running them."""
    from electra.ops import dispatch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setenv("CC", sys.executable)
    remembered = (dispatch.triton_missing, dispatch.cuda_missing)
    for function in remembered:
        function.cache_clear()
    yield torch.device("cuda", 0)
    for function in remembered:
        function.cache_clear()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A promise that was skipped was not kept: fail the run, except for those that need a GPU."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if hasattr(session.config, "workerinput") or reporter is None:
        return
    skipped = [report for report in reporter.stats.get("skipped", []) if "::test_promise_" in report.nodeid]
    broken = sorted({report.nodeid for report in skipped if "gpu" not in report.keywords})
    if broken and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"skipped promises count as failures: {', '.join(broken)}", red=True)
