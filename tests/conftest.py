"""One thread a test process, repeatable property tests, and no silently skipped promise."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two test processes share two cores
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("ELECTRA_DEBUG", None)
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a hundred processes of tests would each compile the package

import pytest
import raise_lines
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton: fused kernels run as NumPy

# A shell that starts the tests in the background has Ctrl-C ignored, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("electra", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("electra")


@pytest.fixture(autouse=True)
def _same_products() -> Iterator[None]:
    """A bf16 product that fails, on a processor without them, turns oneDNN off for the rest of the process."""
    yield
    torch.backends.mkldnn.set_flags(True)


raise_lines.record()
_places: set[str] = set()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    """Gather from a test process of `-n` which lines it reached."""
    _places.update(getattr(node, "workeroutput", {}).get("raised", ()))


def _check_raise_lines(session: pytest.Session, write_line: Callable[..., None]) -> None:
    """After the whole suite, every line that raises a user's error was reached, or is listed with a reason.

    ELECTRA_RAISE_LINES=FILE writes those that are neither to a file.
    """
    config = session.config
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    if not whole or config.option.markexpr or "ELECTRA_SHARD" in os.environ:
        return
    left, known = raise_lines.unreached(_places | {*raise_lines.reached()}), raise_lines.listed()
    missing = sorted({line.listed_as for line in left} - known)
    write_line(f"raise lines of user's errors: {len(missing)} not reached, {len(known)} more listed with a reason")
    if file := os.environ.get("ELECTRA_RAISE_LINES"):
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in missing)
    if missing and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        write_line("no test reaches these lines; write one, or list them in tests/raise_lines.txt:", red=True)
        for line in missing:
            write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: were one of them last, a process would wait for the other.

    ELECTRA_SHARD=i/n leaves every n-th test: the convergence gate runs several processes of them.
    Seven of the ten languages are trained where ELECTRA_LANGUAGES=all asks for it (`make languages`), and what is
    marked `soak` runs where ELECTRA_SOAK=all does (`make soak`).
    """
    for marker in ("languages", "soak"):
        if os.environ.get(f"ELECTRA_{marker.upper()}") != "all":
            items[:] = [item for item in items if item.get_closest_marker(marker) is None]
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)
    if shard := os.environ.get("ELECTRA_SHARD"):
        number, count = map(int, shard.split("/"))
        items[:] = items[number::count]


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device of a machine that says it has an Ampere GPU: which ops are chosen there, without running them.

    A test may give another compute capability as the fixture's parameter.
    """
    from electra.ops import dispatch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: getattr(request, "param", (8, 0)))
    monkeypatch.setenv("CC", sys.executable)
    remembered = (dispatch.triton_missing, dispatch.cuda_missing)
    for function in remembered:
        function.cache_clear()
    yield torch.device("cuda", 0)
    for function in remembered:
        function.cache_clear()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A promise that was skipped was not kept: fail the run, except for those that need a GPU."""
    if hasattr(session.config, "workerinput"):
        session.config.workeroutput["raised"] = raise_lines.reached()  # type: ignore[attr-defined]
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    _check_raise_lines(session, reporter.write_line)
    skipped = [report for report in reporter.stats.get("skipped", []) if "::test_promise_" in report.nodeid]
    broken = sorted({report.nodeid for report in skipped if "gpu" not in report.keywords})
    if broken and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter.write_line(f"skipped promises count as failures: {', '.join(broken)}", red=True)
