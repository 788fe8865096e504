"""Text to exported model in one process that watches itself: nothing unpickled, nothing sent, no secret kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpora
import pytest
import tiny_runs

SECRETS = {
    "HF_TOKEN": "hf_1f0secret0of0a0hub",
    "HUGGING_FACE_HUB_TOKEN": "hf_2f0secret0of0a0hub",
    "WANDB_API_KEY": "5ecre7f00dfeedfacecafe",
    "AWS_SECRET_ACCESS_KEY": "aws0secret0key0value",
}

WATCHED = """
import json, os, sys, traceback

EXEMPT = ("multiprocessing/", "concurrent/futures/process.py")  # messages between a pool's processes
seen = {"unpickled": [], "messages": 0, "network": []}
quiet = {"AF_UNIX"}

def watch(event, args):
    if event == "pickle.find_class":
        frames = [frame.filename for frame in traceback.extract_stack()]
        if any(part in name for name in frames for part in EXEMPT):
            seen["messages"] += 1
        else:
            seen["unpickled"].append([str(args), *frames[-4:]])
    elif event.startswith(("socket.", "urllib.", "ftplib.", "smtplib.", "http.")):
        family = getattr(args[0], "family", None) if args else None
        if event in ("socket.__new__", "socket.gethostname") or getattr(family, "name", "") in quiet:
            return
        seen["network"].append([event, str(args)])
        raise ConnectionError(f"no network here: {event}")

sys.addaudithook(watch)

if __name__ == "__main__":
    from pathlib import Path
    from electra.cli import main
    from electra.shards import build

    build.BLOCK_BYTES = 20_000  # so that worker processes take part
    codes = {}
    for arguments in json.loads(sys.argv[1]):
        try:
            main(arguments)
        except SystemExit as stop:
            codes[arguments[0]] = stop.code
    from electra.report import write_report
    write_report(Path("run"), out=Path("report.html"))

    import fractions, pickle, socket
    before = len(seen["unpickled"])
    pickle.loads(pickle.dumps(fractions.Fraction(1, 3)))
    armed = len(seen["unpickled"]) > before
    seen["unpickled"] = seen["unpickled"][:before]
    calls = len(seen["network"])
    try:
        socket.create_connection(("127.0.0.1", 9), timeout=1)
        blocked = False
    except ConnectionError:
        blocked = len(seen["network"]) > calls
    seen["network"] = seen["network"][:calls]
    Path("seen.json").write_text(json.dumps(seen | {"codes": codes, "armed": armed, "blocked": blocked}))
"""


@dataclass(frozen=True)
class Watched:
    """What the process did, said and wrote."""

    folder: Path
    said: str
    seen: dict[str, Any]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = tmp_path_factory.mktemp("watched")
    corpora.write_corpus(folder / "text.txt", 150)
    (folder / "watched.py").write_text(WATCHED)
    data = ["--vocab-size", "200", "--held-out-share", "0.1", "--workers", "2"]
    steps = [
        ["prepare", "text.txt", "--out", "data", *data],
        tiny_runs.command(Path("data"), Path("run"), "train.steps=4", "optim.warmup_steps=1", "checkpoint.every=2"),
        ["export", "run", "--out", "exported"],
        ["import", "exported", "--out", "imported"],
        ["detect", "--model", "exported", "the river found a mountain"],
        ["doctor"],
    ]
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "ELECTRA_"))}
    done = subprocess.run(
        [sys.executable, "watched.py", json.dumps(steps)],
        cwd=folder,
        env=kept | SECRETS | {"PYTHONPATH": str(tiny_runs.ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=200,
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    seen = json.loads((folder / "seen.json").read_text())
    (folder / "seen.json").unlink()
    assert seen["codes"] == dict.fromkeys([step[0] for step in steps], 0), said
    assert (folder / "exported" / "model.safetensors").is_file() and (folder / "report.html").is_file()
    return Watched(folder, said, seen)


def test_promise_17_nothing_is_unpickled_from_text_to_export(watched: Watched) -> None:
    assert watched.seen["armed"], "the hook would have seen one"
    assert watched.seen["unpickled"] == []
    assert watched.seen["messages"] > 0, "worker processes took part: their messages are the exemption"


def test_promise_17_no_pickle_is_written(watched: Watched) -> None:
    files = [path for path in watched.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        start = path.read_bytes()[:4]
        assert not start.startswith((b"PK", b"\x93NUM")) and start[:2] not in {b"\x80" + bytes([n]) for n in range(6)}
        assert path.suffix in {
            ".txt", ".py", ".json", ".jsonl", ".toml", ".safetensors", ".md", ".html", ".tokens", ".sentences",
            ".documents",
        }, path  # fmt: skip


def test_promise_19_nothing_is_sent_or_asked_for(watched: Watched) -> None:
    assert watched.seen["blocked"], "the hook would have seen a connection"
    assert watched.seen["network"] == []


def test_promise_19_no_secret_reaches_a_file_or_the_screen(watched: Watched) -> None:
    for secret in SECRETS.values():
        assert secret not in watched.said
    for path in watched.folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not [name for name, secret in SECRETS.items() if secret.encode() in content], path


def test_promise_19_what_was_written_names_no_place_of_this_machine(watched: Watched) -> None:
    places = [str(watched.folder), str(tiny_runs.ROOT), str(Path(sys.executable).parent)]
    for path in watched.folder.rglob("*"):
        if path.is_file() and path.name != "watched.py":
            content = path.read_bytes()
            assert not [place for place in places if place.encode() in content], path
