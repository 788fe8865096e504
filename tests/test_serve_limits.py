"""`electra serve` under hostile requests: refused in one line of JSON, by size, by rate, by name; never a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_folders import make_run
from served import LIMIT_S, served

from electra.bench.serve_load import Outcome, load, table
from electra.serve import guard
from electra.serve.app import PAGE
from electra.serve.messages import MAX_CHARACTERS, MAX_ROWS
from electra.serve.rate import BURST_S, MAX_CLIENTS, RateLimit
from electra.serve.service import Service

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limits") / "run"
    make_run(folder)
    return folder


@pytest.fixture(scope="module")
def client(service: Path) -> Iterator[httpx.Client]:
    with served(service, hosts=("model.example",)) as url, httpx.Client(base_url=url, timeout=LIMIT_S) as client:
        yield client


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Status and reason of a refusal, which is one line of JSON."""
    reason = answer.json()["error"]
    assert answer.json().keys() == {"error"} and "\n" not in reason and "Traceback" not in reason
    return answer.status_code, reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"text": "a"', "the body is not JSON"),
        (b"", ""),
        (b"[]", ""),
        (b"[" * 100_000, ""),
        (b'{"text": 5}', "text: "),
        (b'{"text": null}', "text: "),
        (b'{"texts": "a"}', "text"),
        (b'{"text": "a", "more": 1}', "more: "),
        (b'{"text": "a", "threshold": NaN}', "threshold: "),
        (b'{"text": "a", "threshold": 1e999}', "threshold: "),
        (b'{"text": "a", "threshold": 2}', "threshold: "),
        (b'{"text": "\\ud800"}', "text"),
        (b'{"text": "\xff"}', ""),
        (b'{"text": "' + b"a" * (MAX_CHARACTERS + 1) + b'"}', "text: "),
    ],
)
def test_bodies_that_cannot_be_answered(client: httpx.Client, body: bytes, reason: str) -> None:
    status, found = refusal(client.post("/api/detect", content=body, headers=JSON))
    assert status in (400, 422) and reason in found
    assert client.post("/api/detect", json={"text": "the dog"}).status_code == 200


def test_more_than_is_allowed(client: httpx.Client) -> None:
    assert refusal(client.post("/api/encode", json={"texts": ["a"] * (MAX_ROWS + 1)}))[0] == 422
    assert refusal(client.post("/api/predict", json={"rows": [{"text": "a"}] * (MAX_ROWS + 1)}))[0] == 422
    for rows, said in (
        (["x"], 'rows.0: give {"text": ...}, '),
        ([{"text": "a"}, {"txt": "a"}], 'rows.1: give {"text": ...}, '),
        ([{"text": "a"}, {"text": "a" * (MAX_CHARACTERS + 1)}], "rows.1.text: String should have at most"),
        ([{"words": [3]}], "rows.0.words: Input should be a valid string"),
        ("x", "rows: Input should be a valid list"),
    ):
        status, found = refusal(client.post("/api/predict", json={"rows": rows}))
        assert status == 422 and found.startswith(said), found
    for change in ({"rate": 0}, {"rate": 0.9}, {"seed": -1}, {"seed": 2**40}, {"seed": 1.5}):
        assert refusal(client.post("/api/replace", json={"text": "a", **change}))[0] == 422
    assert client.post("/api/detect", json={"text": "\N{GRINNING FACE}" * MAX_CHARACTERS}).status_code == 200
    assert refusal(client.get("/api/detect"))[0] == 405
    assert refusal(client.get("/api/nothing"))[0] == 404
    assert (
        refusal(client.post("/api/detect", content=b'{"text": "a"}', headers={"content-type": "text/plain"}))[0] == 422
    )


def test_a_body_that_is_too_large(client: httpx.Client) -> None:
    for size in (guard.MAX_BODY_BYTES + 1, 3 << 20):
        assert refusal(client.post("/api/detect", content=b"a" * size, headers=JSON)) == (
            413,
            "the body is larger than 256 KiB",
        )
        pieces = (b"a" * 4096 for _ in range(size // 4096 + 1))
        assert refusal(client.post("/api/detect", content=pieces, headers=JSON))[0] == 413
    assert client.post("/api/detect", json={"text": "the dog"}).status_code == 200


def test_a_body_that_does_not_come(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 0.05)
    import socket

    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=LIMIT_S) as slow:
        slow.sendall(b"POST /api/detect HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nab")
        answer = b""
        while part := slow.recv(4096):
            answer += part
    assert answer.startswith(b"HTTP/1.1 408 ")


@settings(max_examples=12)
@given(text=st.text(max_size=80), threshold=st.floats(0, 1))
def test_any_text_is_answered(client: httpx.Client, text: str, threshold: float) -> None:
    answer = client.post("/api/detect", json={"text": text, "threshold": threshold})
    assert answer.status_code == 200 and answer.json()["text"] == text
    replaced = client.post("/api/replace", json={"text": text, "threshold": threshold, "seed": 3})
    assert replaced.status_code == 200 and len(replaced.json()["tokens"]) == len(answer.json()["tokens"])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("192.168.0.7", 200),
        ("model.example", 200),
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("127.0.0.1.evil.example", 400),
        ("", 400),
        ("[::1", 200),
    ],
)
def test_names_of_other_sites_are_refused(client: httpx.Client, host: str, status: int) -> None:
    """DNS rebinding: a page of evil.example lets its name point to 127.0.0.1, and the browser sends that name."""
    answer = client.get("/api/model", headers={"host": host})
    assert answer.status_code == status
    if status == 400:
        assert "--allow-host" in refusal(answer)[1]


def test_pages_of_other_sites_are_refused(client: httpx.Client) -> None:
    for origin in ("http://evil.example", "null", f"https://{client.base_url.host}"):
        answer = client.post("/api/detect", json={"text": "a"}, headers={"origin": origin})
        assert refusal(answer)[0] == 403
    own = f"http://{client.base_url.host}:{client.base_url.port}"
    answer = client.post("/api/detect", json={"text": "a"}, headers={"origin": own})
    assert answer.status_code == 200 and not any(name.startswith("access-control") for name in answer.headers)
    asked = {"origin": own, "access-control-request-method": "POST"}
    assert client.options("/api/detect", headers=asked).status_code == 405


def test_every_answer_has_the_headers(client: httpx.Client) -> None:
    answers = [client.get(address) for address in (*PAGE, "/api/model", "/openapi.json", "/docs", "/redoc", "/../x")]
    answers += [client.get("/", headers={"host": "evil.example"}), client.post("/api/detect", content=b"a" * (1 << 20))]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy and "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
    assert [answer.status_code for answer in answers][-5:-2] == [404, 404, 404]  # their pages load from another site


def test_the_page_names_no_other_site(client: httpx.Client) -> None:
    for address in PAGE:
        text = client.get(address).text.replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, address
    assert "innerHTML" not in client.get("/page.js").text + client.get("/draw.js").text


def test_the_api_describes_itself(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()
    posts = {path for path, verbs in described["paths"].items() if "post" in verbs}
    assert posts == {"/api/detect", "/api/replace", "/api/score", "/api/predict", "/api/encode"}
    answers = described["paths"]["/api/detect"]["post"]["responses"]
    assert {"200", "413", "422", "429", "503"} <= answers.keys()
    assert answers["422"]["content"]["application/json"]["schema"]["$ref"].endswith("/Problem")
    assert described["components"]["schemas"]["DetectRequest"]["properties"]["text"]["maxLength"] == MAX_CHARACTERS


def test_rates_by_hand() -> None:
    now = 0.0
    limit = RateLimit(per_client=2, overall=3, now=lambda: now)
    assert [limit.wait_s("a") for _ in range(4)] == [0] * 4  # two seconds' worth
    assert limit.wait_s("a") == pytest.approx(0.5)
    assert [limit.wait_s("b") for _ in range(2)] == [0] * 2  # six in all
    assert limit.wait_s("b") == pytest.approx(1 / 3)
    now = 1.0
    assert [limit.wait_s("a") > 0 for _ in range(3)] == [False, False, True]
    assert [limit.wait_s("b") > 0 for _ in range(2)] == [False, True]
    now = 1000.0
    assert [limit.wait_s("a") > 0 for _ in range(5)] == [False] * 4 + [True]
    slow = RateLimit(per_client=0.1, overall=1000, now=lambda: now)
    assert slow.wait_s("a") == 0 and slow.wait_s("a") == pytest.approx(10)
    for number in range(MAX_CLIENTS + 10):
        slow.wait_s(str(number))
    assert len(slow._clients) == MAX_CLIENTS and BURST_S == 2


def test_who_asks_too_often_is_asked_to_wait(service: Path) -> None:
    with served(service, per_client=0.5, overall=100) as url:
        first = [httpx.get(f"{url}/api/model", timeout=LIMIT_S) for _ in range(3)]
        transport = httpx.HTTPTransport(local_address="127.0.0.9")
        with httpx.Client(transport=transport, timeout=LIMIT_S) as other:
            assert other.get(f"{url}/api/model").status_code == 200
        spoofed = httpx.get(f"{url}/api/model", headers={"x-forwarded-for": "8.8.8.8"}, timeout=LIMIT_S)
    assert first[0].status_code == 200 and first[-1].status_code == 429 and spoofed.status_code == 429
    assert refusal(first[-1])[0] == 429 and 1 <= int(first[-1].headers["retry-after"]) <= 2


def test_a_full_queue_is_asked_to_wait(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("electra.serve.batching.MAX_WAITING", 0)
    with served(service) as url:
        answer = httpx.post(f"{url}/api/detect", json={"text": "a"}, timeout=LIMIT_S)
    assert refusal(answer)[0] == 429 and answer.headers["retry-after"] == "1"


def test_a_bug_is_an_answer_and_the_next_request_is_fine(
    service: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served_model = Service(service)
    with served(served_model) as url, httpx.Client(base_url=url, timeout=LIMIT_S) as client:
        with monkeypatch.context() as patch:
            patch.setattr("electra.serve.networks.detect_all", lambda *a, **k: 1 / 0)
            answer = client.post("/api/detect", json={"text": "a"})
        assert refusal(answer)[0] == 500 and "content-security-policy" in answer.headers
        assert client.post("/api/detect", json={"text": "a"}).status_code == 200
    assert "ZeroDivisionError" in caplog.text


def test_the_load_generator_counts(service: Path) -> None:
    import asyncio

    with served(service, per_client=1, overall=1000) as url:
        outcome: Any = asyncio.run(load(url, clients=3, rate=20, seconds=0.5, tokens=12))
    assert set(outcome.statuses) == {200, 429} and outcome.statuses.total() == 30
    assert not outcome.failures and outcome.without_retry_after == 0
    text = table(outcome, clients=3, seconds=0.5)
    assert "failures: 0" in text and "status 429" in text and "median" in text
    assert "failures: 1" in table(
        Outcome(failures=outcome.failures + type(outcome.failures)(x=1)), clients=1, seconds=1
    )
