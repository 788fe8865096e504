"""One thread a test process, repeatable property tests, and no silently skipped promise."""

from __future__ import annotations

import os
import signal

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
