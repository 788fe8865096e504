"""Hub names: the local cache, downloads and pushes against a hub on this machine; nothing leaves it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import one_process
import pytest
from click.testing import CliRunner
from model_folders import SIZE, make_run

from electra.cli import main
from electra.errors import CheckpointError, ConfigError
from electra.interop.hub import HubName, cache_folder, hub_name
from electra.interop.models import load_model
from electra.interop.push import plan_push
from electra.interop.transfer import export_model, import_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/tiny-electra"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    make_run(tmp_path / "run")
    export_model(tmp_path / "run", tmp_path / "hf")
    return tmp_path / "hf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and a working folder without anything of the hub's names."""
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


def put(cache: Path, folder: Path, *, revision: str = "main") -> Path:
    """A model in the cache, laid out as huggingface_hub does."""
    model = cache / "models--someone--tiny-electra"
    (model / "refs" / revision).parent.mkdir(parents=True)
    (model / "refs" / revision).write_text(COMMIT)
    (model / "snapshots").mkdir()
    return folder.rename(model / "snapshots" / COMMIT)


def test_a_name_is_found_in_the_cache(cache: Path, exported: Path) -> None:
    put(cache, exported)
    loaded = load_model(Path(NAME))
    assert loaded.config == SIZE and str(loaded.path) == NAME
    assert load_model(Path(f"{NAME}@{COMMIT}")).config == SIZE
    assert import_model(Path(NAME), Path("back")).config.model == SIZE
    done = CliRunner().invoke(main, ["detect", "--model", NAME, "the dog sat"])
    assert done.exit_code == 0, done.output


def test_a_revision_is_found_in_the_cache(cache: Path, exported: Path) -> None:
    put(cache, exported, revision="refs/pr/3")
    assert load_model(Path(f"{NAME}@refs/pr/3")).config == SIZE
    with pytest.raises(CheckpointError, match="not in the local hub cache"):
        load_model(Path(NAME))


def test_the_cache_needs_no_package(cache: Path, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"-m pip install 'electra\[hf\]'"):
        load_model(Path(NAME))
    put(cache, exported)
    assert load_model(Path(NAME)).config == SIZE


def test_a_folder_here_comes_first(cache: Path, exported: Path) -> None:
    other = Path(NAME)
    other.parent.mkdir()
    exported.rename(other)
    assert load_model(other).config == SIZE


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("google/electra-small-discriminator", HubName("google/electra-small-discriminator")),
        ("a/b.c_d-e@v1.0", HubName("a/b.c_d-e", "v1.0")),
        ("a/b@refs/pr/7", HubName("a/b", "refs/pr/7")),
        *(
            (text, None)
            for text in ("a", "/a/b", "a/b/c", "../a", "a/..", "./a", "a/b@../c", "~/a", "a b/c", "a/b@", "")
        ),
    ],
)
def test_what_is_a_name(text: str, found: HubName | None) -> None:
    assert hub_name(text) == found


def test_the_cache_is_where_huggingface_hub_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    code = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    for names in ({"HF_HOME": "a"}, {"HF_HUB_CACHE": "b", "HF_HOME": "a"}, {"XDG_CACHE_HOME": "c"}, {}):
        values = {name: str(tmp_path / value) for name, value in names.items()} | {"HOME": str(tmp_path)}
        for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        theirs = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert str(cache_folder()) == theirs.stdout.strip()


# A hub on this machine.


class Hub(ThreadingHTTPServer):
    """The few answers of the hub's protocol that a download and a push need; it remembers what it was asked."""

    def __init__(self, files: dict[str, bytes] | None) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files = files
        self.private = True
        self.asked: list[tuple[str, str, bytes]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def electra(self, *args: object, cwd: Path, cache: Path) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        env |= {"HF_ENDPOINT": self.address, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache.parent / "hf-home")}
        env |= {"HF_TOKEN": "hf_made_up_for_this_test", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        command = [sys.executable, *one_process.program(), *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, timeout=120)


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            return content + self.rfile.readline()
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), Content_Type="application/json")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, b""))
        path, files = self.path.split("?")[0], self.server.files
        if files is None or not path.startswith((f"/api/models/{NAME}", f"/{NAME}/")):
            self._send(404, b"{}", X_Error_Code="RepoNotFound")
        elif "/tree/" in path:
            tree = [(name, content, hashlib.sha1(content).hexdigest()) for name, content in files.items()]
            self._json([{"type": "file", "path": name, "size": len(c), "oid": oid} for name, c, oid in tree])
        elif path.startswith("/api/models/"):
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": NAME, "sha": COMMIT, "siblings": siblings, "private": self.server.private})
        else:
            name = path.rpartition("/")[2]
            digest = hashlib.sha1(files[name]).hexdigest()
            self._send(200, files[name], ETag=f'"{digest}"', X_Repo_Commit=COMMIT)

    def do_POST(self) -> None:
        content = self._read()
        self.server.asked.append(("POST", self.path, content))
        if self.path.endswith("/validate-yaml"):
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            files = json.loads(content)["files"]
            regular = [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]
            self._json({"files": regular})
        elif "/commit/" in self.path:
            self._json({"commitUrl": f"{self.server.address}/{NAME}/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self._json({"url": f"{self.server.address}/{NAME}"})


@pytest.fixture
def hub() -> Iterator[Any]:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed: pip install 'electra[hf]'")
    started: list[tuple[Hub, threading.Thread]] = []

    def start(files: dict[str, bytes] | None) -> Hub:
        server = Hub(files)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_model_is_downloaded_once_without_its_pickle(hub: Any, exported: Path, cache: Path) -> None:
    files = {path.name: path.read_bytes() for path in exported.iterdir()} | {"pytorch_model.bin": b"cos\nsystem\n"}
    server = hub(files)
    done = server.electra("detect", "--model", NAME, "the dog sat", cwd=Path.cwd(), cache=cache)
    assert done.returncode == 0, done.stderr
    assert f"{NAME}: not in the local hub cache, downloading it from {server.address}" in done.stderr
    assert not any("pytorch_model.bin" in path for _, path, _ in server.asked)
    count = len(server.asked)
    again = server.electra("detect", "--model", NAME, "the dog sat", cwd=Path.cwd(), cache=cache)
    assert again.returncode == 0 and again.stdout == done.stdout and len(server.asked) == count, "from the cache now"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "its download failed: RepositoryNotFoundError"),
        (
            {"config.json": b"{}", "pytorch_model.bin": b"x"},
            "no model.safetensors on the hub, and pickles are never read",
        ),
    ],
)
def test_promise_20_what_the_hub_does_not_have(
    hub: Any, cache: Path, files: dict[str, bytes] | None, message: str
) -> None:
    done = hub(files).electra("export", NAME, "--out", "out", cwd=Path.cwd(), cache=cache)
    assert done.returncode == 5 and message in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"electra: error: {NAME}: ")
    assert "Traceback" not in done.stderr and not Path("out").exists()


def test_a_typing_error_in_a_local_path_is_never_sent(hub: Any, cache: Path) -> None:
    Path("runs").mkdir()
    server = hub(None)
    done = server.electra("detect", "--model", "runs/smal", "the dog sat", cwd=Path.cwd(), cache=cache)
    assert done.returncode == 5 and "runs/smal: no such folder" in done.stderr and server.asked == []


def test_promise_20_offline_is_one_line(cache: Path) -> None:
    pytest.importorskip("huggingface_hub")
    done = CliRunner().invoke(main, ["detect", "--model", "google/electra-small-discriminator", "the dog sat"])
    assert done.exit_code == 5 and len(done.stderr.splitlines()) == 1
    assert "is no folder here, and not in the local hub cache" in done.stderr and "HF_HUB_OFFLINE" in done.stderr


def test_a_push_is_private_and_sends_the_folder(hub: Any, exported: Path, cache: Path) -> None:
    server = hub(None)
    done = server.electra("push", exported, NAME, cwd=Path.cwd(), cache=cache)
    assert done.returncode == 0, done.stderr
    assert (
        f"files, {sum(p.stat().st_size for p in exported.iterdir()) / 1e6:.1f} MB, to {NAME} (private)" in done.stderr
    )
    posts = {path: content for method, path, content in server.asked if method == "POST"}
    made = json.loads(posts["/api/repos/create"])
    assert made.get("private") or made.get("visibility") == "private", "either spelling of the protocol"
    assert f"{made['organization']}/{made['name']}" == NAME
    commit = next(content for path, content in posts.items() if "/commit/" in path)
    sent = {line["value"]["path"] for line in map(json.loads, commit.splitlines()) if line["key"] == "file"}
    assert sent == {path.name for path in exported.iterdir()}


def test_a_public_repository_is_not_filled_by_accident(hub: Any, exported: Path, cache: Path) -> None:
    server = hub({})
    server.private = False
    done = server.electra("push", exported, NAME, cwd=Path.cwd(), cache=cache)
    assert done.returncode == 2 and "exists and is public (add --public" in done.stderr
    assert not any(method == "POST" for method, _, _ in server.asked)
    done = server.electra("push", exported, NAME, "--public", cwd=Path.cwd(), cache=cache)
    assert done.returncode == 0 and any("/commit/" in path for _, path, _ in server.asked)


def test_a_dry_run_sends_nothing(exported: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["push", str(exported), NAME, "--dry-run"])
    assert done.exit_code == 0 and done.stdout.splitlines()[-1].startswith("would send ")
    assert set(done.stdout.splitlines()[:-1]) == {path.name for path in exported.iterdir()}


def test_promise_20_what_is_not_pushed(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not an exported folder.*electra export writes one"):
        plan_push(tmp_path / "run", NAME)
    for name in ("tiny", "a/b@main", "a/b/c", "../x"):
        with pytest.raises(ConfigError, match="give owner/name"):
            plan_push(exported, name)
    (exported / ".secret").write_text("x")
    with pytest.raises(CheckpointError, match="is hidden"):
        plan_push(exported, NAME)
    (exported / ".secret").unlink()
    done = CliRunner().invoke(main, ["push", str(exported), NAME])  # tests run offline
    assert done.exit_code == 2 and "HF_HUB_OFFLINE forbids it" in done.stderr
