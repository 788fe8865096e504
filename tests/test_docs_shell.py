"""Every shell block of the documentation that is marked as tested runs as it stands, page by page.

A block is marked by a comment before it, which no reader sees, with clauses that say what else is true of it:

    <!-- test -->
    <!-- test: given run, reviews.csv; needs electra:tiny; until Ctrl-C -->

given      what the reader is supposed to have: a fixture below puts it there
needs      a model of this package; the page is skipped where this installation does not have it
until      the block's last command serves: it must answer at its address, and Ctrl-C must end it

The blocks of a page run one after the other in one folder, each in a bash of its own with `set -eu -o pipefail`.
Nothing else is added or changed. `.venv/bin/electra` and `electra` are this version's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import one_process
import pytest

import electra

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKED = re.compile(
    r"^<!-- test(?:: (?P<clauses>[^>]*?))? -->\n+```(?:sh)?\n(?P<script>.*?)^```$", re.MULTILINE | re.DOTALL
)
CLAUSE = re.compile(r"given (?P<given>[^;]+)|needs (?P<needs>\S+)|(?P<until>until Ctrl-C)")
LIMIT_S = 240.0
PORT = 8000  # what pages say; one test at a time may have it


class Block(NamedTuple):
    """A tested block, with its clauses."""

    script: str
    given: tuple[str, ...] = ()
    needs: str = ""
    until: bool = False


def marked(text: str) -> list[Block]:
    """The tested blocks of a page."""
    found = list(MARKED.finditer(text))
    if len(found) != text.count("<!-- test"):
        raise ValueError("a comment `<!-- test ... -->` that is no mark of a shell block")
    return [block(one["script"], one["clauses"] or "") for one in found]


def block(script: str, clauses: str) -> Block:
    made = Block(script)
    for clause in filter(None, clauses.split("; ")):
        found = CLAUSE.fullmatch(clause)
        if found is None:
            raise ValueError(f"a mark with an unknown clause: {clause}")
        if found["given"]:
            made = made._replace(given=tuple(found["given"].replace(",", " ").split()))
        made = made._replace(needs=found["needs"] or made.needs, until=made.until or bool(found["until"]))
    return made


TESTED = {str(page.relative_to(ROOT)): found for page in PAGES if (found := marked(page.read_text(encoding="utf-8")))}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the command `electra`."""
    place = tmp_path_factory.mktemp("programs")
    address = place / "socket"
    program = place / "electra"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {one_process.__file__} {address} "$0" "$@"\n')
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for one in (program, python):
        one.chmod(0o755)
    server = one_process.start_server(address, *one_process.ALL)
    try:
        yield place
    finally:
        server.kill()
        server.wait()


def shell(script: str, folder: Path, programs: Path) -> subprocess.Popen[str]:
    """A script started with bash in a folder, as by a reader who has installed the package there."""
    installed, home = folder / ".venv", folder / "home"
    if not installed.exists():
        installed.mkdir()
        (installed / "bin").symlink_to(programs)
        home.mkdir()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")  # what C++ was compiled to
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", "-c", f"set -eu -o pipefail\n{script}"],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(home), "XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the script and what it started, and nothing else
    )


def ended(started: subprocess.Popen[str], *, code: int = 0) -> str:
    """What a script printed; it must end with this exit code."""
    try:
        output, _ = started.communicate(timeout=LIMIT_S)
    except BaseException:
        os.killpg(started.pid, signal.SIGKILL)
        raise
    assert started.returncode == code, f"exit code {started.returncode}:\n{output[-4000:]}"
    return output


def ctrl_c_when_it_answers(started: subprocess.Popen[str]) -> None:
    """Wait until a page is served, then stop it as a reader would."""
    ends = time.monotonic() + LIMIT_S
    while started.poll() is None and time.monotonic() < ends:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=10) as answer:
            assert b"<html" in answer.read()
            break
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGINT)


@pytest.fixture(scope="module")
def things(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages start from: text, tables, prepared data, a run of a few steps, a fine-tuned model."""
    folder = tmp_path_factory.mktemp("things")
    (folder / "my-texts").mkdir()
    for name in sorted(topics)[::3]:
        (folder / "my-texts" / f"{name}.txt").write_text(topics[name], encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples")
    rows = (ROOT / "examples" / "reviews.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "reviews.csv").write_text("".join(rows[:13]), encoding="utf-8")
    (folder / "new.csv").write_text("id,review\n7,A gripping story\n8,Dull and far too long\n", encoding="utf-8")
    (folder / "texts.txt").write_text("A gripping story.\nDull and far too long.\n", encoding="utf-8")
    started = shell(
        """electra prepare my-texts --out data --vocab-size 1000 --workers 1
        electra pretrain --data data --out run --preset tiny model.layers=1 train.steps=4 train.batch_size=8 \
            evaluate.every=4 evaluate.sequences=16 train.log_every=1
        electra finetune classify reviews.csv --text review --label verdict --model run epochs=1""",
        folder,
        programs,
    )
    ended(started)
    return folder


@pytest.fixture
def port() -> Iterator[None]:
    """The port that pages name, for one test of this machine at a time; skipped where another program has it."""
    with open(Path(tempfile.gettempdir()) / f"electra-docs-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            socket.create_server(("127.0.0.1", PORT)).close()
        except OSError:
            pytest.skip(f"another program listens on port {PORT}, which the pages use")
        yield


@pytest.mark.parametrize("name", TESTED)
def test_the_marked_blocks_of_a_page_run(name: str, programs: Path, things: Path, port: None, tmp_path: Path) -> None:
    blocks = TESTED[name]
    models = Path(electra.__file__).parent / "bundled"
    missing = [one.needs for one in blocks if one.needs and not (models / one.needs.removeprefix("electra:")).is_dir()]
    if missing:
        pytest.skip(f"this installation has no {missing[0]}")
    for thing in [thing for one in blocks for thing in one.given]:
        copy = shutil.copytree if (things / thing).is_dir() else shutil.copy
        copy(things / thing, tmp_path / thing)
    for one in blocks:
        started = shell(one.script, tmp_path, programs)
        if one.until:
            ctrl_c_when_it_answers(started)
        ended(started)


def test_pages_that_must_be_tested_are() -> None:
    wanted = ("finetune", "serve", "report", "exchange", "track", "completion")
    assert {"README.md", "docs/tutorial.md", *(f"docs/how-to/{name}.md" for name in wanted)} <= TESTED.keys()


def test_a_failing_line_fails(programs: Path, tmp_path: Path) -> None:
    ended(shell("false\ntrue", tmp_path, programs), code=1)
    ended(shell("electra fly | cat", tmp_path, programs), code=2)
    ended(shell(".venv/bin/electra detect --model nowhere x", tmp_path, programs), code=5)


def test_marks_are_read_and_wrong_ones_refused() -> None:
    page = "a\n\n<!-- test: given run; needs electra:tiny -->\n```sh\nfalse\n```\n\n<!-- test -->\n\n```\ntrue\n```\n"
    assert marked(page) == [Block("false\n", ("run",), "electra:tiny"), Block("true\n")]
    assert marked("<!-- test: until Ctrl-C -->\n```\ntrue\n```\n") == [Block("true\n", until=True)]
    assert marked("```sh\nfalse\n```\n") == []
    for wrong in ("<!-- test -->\ntext\n", "<!-- test: without -->\n```\ntrue\n```\n"):
        with pytest.raises(ValueError, match="mark"):
            marked(wrong)
