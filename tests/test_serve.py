"""`electra serve`: the API's answers are those of `inference`, alone and together; a run is followed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import one_process
import pytest
import tiny_runs
import tuned_folders
from click.testing import CliRunner
from model_folders import MLM, RTD, make_run
from served import LIMIT_S, served

from electra.checkpoint import store
from electra.cli import main
from electra.errors import CheckpointError, DataError, pip_install
from electra.finetune.model_folder import load_finetuned
from electra.finetune.pretrained import of_loaded
from electra.inference.corrupt import corrupt_texts
from electra.inference.detect import detect, detect_all
from electra.inference.encode import encode
from electra.inference.likelihood import score
from electra.inference.predict import predict
from electra.interop.models import load_model
from electra.serve.batching import MAX_WAITING, Batcher, Busy
from electra.serve.run_follow import RunFollower, thinned
from electra.serve.service import Service
from electra.tasks.rows import Kind
from electra.tracking import metrics_follower

TEXT = "The chef ate the zebra \N{GRINNING FACE}, and we saw money!"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve") / "run"
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def client(run: Path) -> Iterator[httpx.Client]:
    with served(run) as url, httpx.Client(base_url=url, timeout=LIMIT_S) as client:
        yield client


def close(found: Any, expected: Any) -> bool:
    """Equal, numbers to 1e-5."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(close, found, expected))
    return found == pytest.approx(expected, abs=1e-5) if isinstance(expected, float) else found == expected


def test_detection_is_that_of_inference(run: Path, client: httpx.Client) -> None:
    loaded = load_model(run)
    for text, threshold in ((TEXT, 0.5), (TEXT, 0.25), ("", 0.5), ("the dog " * 60, 0.5)):
        answer = client.post("/api/detect", json={"text": text, "threshold": threshold})
        assert answer.status_code == 200
        assert close(answer.json(), asdict(detect(loaded, text, threshold=threshold)))
    flags = [
        token["flagged"] for token in client.post("/api/detect", json={"text": TEXT, "threshold": 0}).json()["tokens"]
    ]
    assert flags and all(flags)


def test_texts_detected_together_are_as_alone(run: Path) -> None:
    loaded = load_model(run)
    texts = ["", "the", TEXT, "a cat sat on the mat " * 9, "we saw"]
    for text, found in zip(texts, detect_all(loaded, texts), strict=True):
        assert close(asdict(found), asdict(detect(loaded, text)))


def test_replacement_is_pre_trainings_game(run: Path, client: httpx.Client) -> None:
    discriminator, generator = load_model(run), load_model(run, part="generator")
    text = "the chef cooked a meal and the dog sat on the mat. we saw the bank and the money, and ate! " * 3
    [expected] = corrupt_texts(generator, discriminator, [text], seeds=[5], rate=0.3)
    answer = client.post("/api/replace", json={"text": text, "rate": 0.3, "seed": 5}).json()
    assert close(answer, asdict(expected))
    # Computed with others, the samples are the same.
    together = corrupt_texts(generator, discriminator, ["", TEXT * 5, text], seeds=[1, 2, 5], rate=0.3)
    assert close(asdict(together[2]), asdict(expected)) and together[0].tokens == ()
    tokens = expected.tokens
    ids = discriminator.tokenizer.encode(text)
    assert [token.original for token in tokens] == [discriminator.tokenizer.token(number) for number in ids]
    assert all(token.masked for token in tokens if token.replaced) and sum(token.replaced for token in tokens) > 5
    assert sum(token.masked for token in tokens) == pytest.approx(0.3 * len(tokens), rel=0.2)
    kept = [token for token in tokens if not token.replaced]
    assert all(token.token == token.original for token in kept)
    # The discriminator reads the corrupted tokens: by hand, the first window decides the first of them.
    vocabulary = {token: number for number, token in enumerate(discriminator.tokenizer.vocab)}
    corrupted = [vocabulary[token.token] for token in tokens]
    import torch

    row = [discriminator.tokenizer.cls_id, *corrupted[:22], discriminator.tokenizer.sep_id]
    direct = discriminator.probabilities(torch.tensor([row]))[0, 1:12].tolist()
    assert [token.probability for token in tokens[:11]] == pytest.approx(direct, abs=1e-5)
    seeds = {str(corrupt_texts(generator, discriminator, [text], seeds=[seed])[0]) for seed in range(4)}
    assert len(seeds) == 4
    assert str(corrupt_texts(generator, discriminator, [TEXT], seeds=[1], rate=1e-9)[0]).count(" ") >= 5


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("classify", {"text": "the chef cooked"}),
        ("multilabel", {"text": "the dog", "pair": None}),
        ("regress", {"text": "we saw money"}),
        ("pairs", {"text": "the chef cooked", "pair": "a meal"}),
        ("tag", {"words": ["the", "chef", "ate"]}),
        ("span", {"question": "who ate", "context": "the dog sat. the cat ate the meal " * 3}),
    ],
)
def test_predictions_are_those_of_inference(tmp_path: Path, kind: Kind, row: dict[str, Any]) -> None:
    tuned_folders.save(tmp_path / "tuned", kind)
    expected = predict(load_finetuned(tmp_path / "tuned"), [row["words"] if kind == "tag" else _texts(row)] * 2)
    with served(tmp_path / "tuned") as url, httpx.Client(base_url=url, timeout=LIMIT_S) as client:
        facts = client.get("/api/model").json()
        assert (facts["task"]["kind"], facts["verbs"], facts["run"]) == (kind, ["predict", "encode"], False)
        answer = client.post("/api/predict", json={"rows": [row, row]})
        assert close(answer.json(), {"predictions": expected, "lost_tokens": [0, 0]})
        other = {"words": ["a"]} if kind != "tag" else {"text": "a"}
        refused = client.post("/api/predict", json={"rows": [other]})
        assert refused.status_code == 422 and "takes" in refused.json()["error"]
        assert client.post("/api/detect", json={"text": "a"}).status_code == 422
        assert client.get("/api/run").status_code == 404


@pytest.mark.parametrize("kind", ["classify", "pairs"])
def test_what_a_row_loses_is_in_its_answer(tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    tuned_folders.save(tmp_path / "tuned", kind)
    takes = load_finetuned(tmp_path / "tuned").about.length - 2  # beside [CLS] and [SEP]
    long, short = " ".join(["dog"] * (takes + 9)), "a dog"
    texts = {"classify": [(long,), (short,)], "pairs": [(long, long), (short, "dog " * (takes + 1)), (short, short)]}
    rows = [dict(zip(("text", "pair"), row, strict=False)) for row in texts[kind]]
    with served(tmp_path / "tuned") as url, httpx.Client(base_url=url, timeout=LIMIT_S) as client:
        for _ in range(2):
            answer = client.post("/api/predict", json={"rows": rows}).json()
            assert answer["lost_tokens"] == ([9, 0] if kind == "classify" else [18, 1, 0])
    assert "longer than" not in capsys.readouterr().err, "the answers say it; the server has no line a request"


def _texts(row: dict[str, Any]) -> str | tuple[str, ...]:
    texts = tuple(value for value in row.values() if value is not None)
    return texts if len(texts) > 1 else texts[0]


def test_vectors_and_scores_are_those_of_inference(tmp_path: Path, run: Path, client: httpx.Client) -> None:
    texts = ["the chef", TEXT]
    for pooling in ("mean", "cls"):
        answer = client.post("/api/encode", json={"texts": texts, "pooling": pooling}).json()
        expected = encode(of_loaded(load_model(run)), texts, pooling=pooling).tolist()  # type: ignore[arg-type]
        assert close(answer, {"vectors": expected})
    make_run(tmp_path / "bert", MLM)
    with served(tmp_path / "bert") as url:
        found = httpx.post(f"{url}/api/score", json={"text": TEXT}, timeout=LIMIT_S).json()
        facts = httpx.get(f"{url}/api/model", timeout=LIMIT_S).json()
    assert close(found, asdict(next(score(load_model(tmp_path / "bert"), [TEXT]))))
    assert facts["verbs"] == ["score", "encode"]


def test_many_clients_get_their_own_answers(run: Path, client: httpx.Client) -> None:
    loaded = load_model(run)
    texts = [f"the {'dog ' * (number % 9)}ate {'money ' * (number % 5)}" for number in range(60)]

    async def all_at_once() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=client.base_url, timeout=LIMIT_S) as many:
            return await asyncio.gather(*(many.post("/api/detect", json={"text": text}) for text in texts))

    for text, answer in zip(texts, asyncio.run(all_at_once()), strict=True):
        assert answer.status_code == 200 and close(answer.json(), asdict(detect(loaded, text)))


def test_what_waits_is_computed_together() -> None:
    calls: list[tuple[Any, Sequence[Any]]] = []
    first_came, go_on = threading.Event(), threading.Event()

    def compute(kind: Any, items: Sequence[Any]) -> list[Any]:
        calls.append((kind, list(items)))
        first_came.set()
        assert go_on.wait(LIMIT_S)
        if "bad" in items:
            raise DataError("row 1", "is bad")
        if "broken" in items:
            raise RuntimeError("a bug")
        return [f"{kind}-{item}" for item in items]

    async def ask() -> list[Any]:
        batcher = Batcher(compute)
        with batcher.running():
            waiting = [asyncio.ensure_future(batcher.answer("x", "first"))]
            await asyncio.to_thread(first_came.wait, LIMIT_S)
            for kind, item in [("x", 1), ("y", 2), ("x", "bad"), ("x", 3), ("z", "broken")]:
                waiting.append(asyncio.ensure_future(batcher.answer(kind, item)))
            gone = asyncio.ensure_future(batcher.answer("x", "gone"))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.sleep(0)
            go_on.set()
            found = await asyncio.gather(*waiting, return_exceptions=True)
            go_on.clear()
            first_came.clear()
            blocked = asyncio.ensure_future(batcher.answer("x", 0))
            await asyncio.to_thread(first_came.wait, LIMIT_S)
            queued = [asyncio.ensure_future(batcher.answer("x", number)) for number in range(MAX_WAITING)]
            await asyncio.sleep(0)
            with pytest.raises(Busy):
                await batcher.answer("x", "one too many")
            go_on.set()
            await asyncio.gather(blocked, *queued)
        return found

    found = asyncio.run(ask())
    assert found[0] == "x-first" and found[1] == "x-1" and found[2] == "y-2" and found[4] == "x-3"
    assert isinstance(found[3], DataError) and isinstance(found[5], RuntimeError)
    assert ("x", [1, "bad", 3]) in calls and ("y", [2]) in calls
    assert not any("gone" in items for _, items in calls)
    assert max(len(items) for _, items in calls) == 32


def write_metrics(run: Path, steps: int) -> None:
    lines = []
    for step in range(1, steps + 1):
        lines.append(
            {"kind": "train", "step": step, "train/rtd_loss": 1 / step, "perf/tokens_per_s": 100.0, "train/x": None}
        )
    lines.append({"kind": "eval", "step": steps, "eval/rtd_auc": 0.5 + steps / 10_000, "eval/rtd_loss": 0.25})
    sample = {
        "original": ["[CLS]", "the", "cat"],
        "masked": ["[CLS]", "the", "[MASK]"],
        "replaced": ["[CLS]", "the", "dog"],
    }
    lines.append({"kind": "sample", "step": steps, **sample, "probabilities": [0.1, 0.2, 0.7], "spaced": False})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "tra')


def test_a_run_is_followed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tensors = make_run(run, step=70)
    zeros = {name: tensor.new_zeros(tensor.shape) for name, tensor in tensors.items()}
    kept = (run / "checkpoints").rename(tmp_path / "checkpoints")
    with served(run) as url, httpx.Client(base_url=url, timeout=LIMIT_S) as client:
        facts = client.get("/api/model").json()
        assert (facts["ready"], facts["verbs"], facts["run"]) == (False, [], True)
        early = client.post("/api/detect", json={"text": "the dog"})
        assert (
            early.status_code == 503 and "no checkpoint yet" in early.json()["error"] and early.headers["retry-after"]
        )
        state = client.get("/api/run").json()
        assert (state["step"], state["curves"], state["sample"], state["checkpoint"]) == (0, {}, None, None)
        kept.rename(run / "checkpoints")
        _until(lambda: client.get("/api/model").json()["step"] == 70)
        before = client.post("/api/detect", json={"text": "the dog"}).json()
        write_metrics(run, 1000)
        state = client.get("/api/run").json()
        assert state["step"] == 1000 and state["checkpoint"] == 70 and state["total_steps"] == RTD.train.steps
        assert state["curves"]["eval/rtd_auc"] == [[1000, 0.6]] and "train/x" not in state["curves"]
        curve = state["curves"]["train/rtd_loss"]
        assert len(curve) == 300 and curve[-1] == [1000, 0.001] and sum(v for _, v in curve) > 1
        assert state["sample"]["replaced"] == ["[CLS]", "the", "dog"] and state["sample"]["probabilities"][2] == 0.7
        write_metrics(run, 20)
        state = client.get("/api/run").json()
        assert (state["step"], len(state["curves"]["train/rtd_loss"])) == (20, 20)
        weights = {name: tensor + 0.05 for name, tensor in tensors.items()}
        store.save(
            run, step=90, tensors={"model": weights, "average": zeros, "square": zeros}, state={"step": 90}, keep=3
        )
        _until(lambda: client.get("/api/model").json()["step"] == 90)
        after = client.post("/api/detect", json={"text": "the dog"}).json()
        assert after != before and close(after, asdict(detect(load_model(run), "the dog")))
        (run / "checkpoints" / "step-00000095").mkdir()
        _until(lambda: client.get("/api/run").json()["checkpoint"] == 95)
        assert client.post("/api/detect", json={"text": "the dog"}).json() == after


def test_a_run_is_read_on_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path)
    follower, read = RunFollower(tmp_path), []
    parse = metrics_follower.parse_line
    monkeypatch.setattr(metrics_follower, "parse_line", lambda raw, where: read.append(raw) or parse(raw, where=where))
    write_metrics(tmp_path, 500)
    assert follower.state().step == 500 and len(read) > 500
    read.clear()
    with open(tmp_path / "metrics.jsonl", "a") as file:  # the line that was cut off goes on
        file.write('in", "step": 501, "train/rtd_loss": 0.5}\n')
    state = follower.state()
    assert state.step == 501 and state.curves["train/rtd_loss"][-1] == (501, 0.5) and len(read) < 5
    assert follower.state().curves == state.curves
    (tmp_path / "metrics.jsonl").unlink()
    assert follower.state().step == 0


def _until(happened: Any) -> None:
    ends = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < ends
        time.sleep(0.05)


def test_thinned_curves_keep_their_mean_and_their_end() -> None:
    points = [(step, float(step % 7)) for step in range(10_000)]
    made = thinned(points, most=50)
    assert len(made) == 50 and made[-1] == points[-1] and [step for step, _ in made] == sorted(step for step, _ in made)
    assert sum(value for _, value in made) / 50 == pytest.approx(3, abs=0.1)
    assert thinned(points[:50], most=50) == points[:50]


def test_a_generator_of_another_vocabulary_is_refused(tmp_path: Path, run: Path) -> None:
    from electra.tokenizer.codec import Tokenizer

    make_run(tmp_path / "other")
    other = Tokenizer([*load_model(run).tokenizer.vocab[:-1], "?"])
    other.save(tmp_path / "other" / "tokenizer")
    (tmp_path / "other" / "manifest.json").unlink()
    with pytest.raises(DataError, match="another vocabulary"):
        Service(run, generator=tmp_path / "other")
    with pytest.raises(CheckpointError, match="no such folder"):
        Service(tmp_path / "nowhere")


def test_the_command_serves_until_ctrl_c(run: Path) -> None:
    process = tiny_runs.start(
        ["serve", str(run), "--port", "0"],
        one_process.program(),
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line
        assert httpx.get(address[0], timeout=LIMIT_S).headers["content-type"].startswith("text/html")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0 and rest == "electra: stopped serving\n"


def test_mistakes_on_the_command_line_are_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = CliRunner().invoke(main, ["serve", str(run), "--port", str(taken.getsockname()[1])])
    assert result.exit_code == 2 and "cannot listen on 127.0.0.1" in result.stderr and "--port 0" in result.stderr
    result = CliRunner().invoke(main, ["serve", str(run), "--host", "a..b"])
    assert result.exit_code == 2 and "no address of this machine" in result.stderr
    monkeypatch.setattr("electra.cli.serve.find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["serve", str(run)])
    assert result.exit_code == 2
    assert result.stderr == f"electra: error: electra serve: this needs fastapi and uvicorn ({pip_install('serve')})\n"


def test_other_machines_are_warned_about(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from electra.serve import server

    def end(self: object, sockets: object = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("uvicorn.Server.run", end)
    for host, warned in (("0.0.0.0", True), ("127.0.0.1", False), ("localhost", False)):
        server.serve(Service(run), host=host, port=0, per_client=1, overall=1)
        assert ("warning: 0.0.0.0 can be reached from other machines" in capsys.readouterr().err) == warned
