"""`python -m electra.bench.serve_load URL`: how fast `electra serve` answers, and whether it holds under load.

Every client is a connection of its own. Against a server on this machine each has an address of its own too
(127.0.0.2, 127.0.0.3, ...), as the limit by client counts addresses.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import click
import httpx

from electra.bench.start import start
from electra.errors import ConfigError

TIMEOUT_S = 30.0
WORDS = (
    "the people of the city saw that a new house stood on the hill and they said it was good to look at in the"
    " morning when the sun came up over the river while the old men sat by the road and talked about the year"
).split()


@dataclass(slots=True)
class Outcome:
    """What all clients together got."""

    seconds: list[float] = field(default_factory=list)
    """Of each answer with status 200."""
    statuses: Counter[int] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """Requests without any answer, by the name of the exception."""
    without_retry_after: int = 0
    """Answers 429 that do not say when to ask again."""


@click.command()
@click.argument("url")
@click.option("--clients", type=click.IntRange(1, 250), default=50, show_default=True)
@click.option(
    "--rate", type=click.FloatRange(0.01), default=0.5, show_default=True, help="Requests a second of each client."
)
@click.option("--seconds", type=click.FloatRange(0.1), default=60.0, show_default=True)
@click.option(
    "--tokens", type=click.IntRange(1), default=128, show_default=True, help="Length, [CLS] and [SEP] included."
)
def command(url: str, clients: int, rate: float, seconds: float, tokens: int) -> None:
    """Send detection requests (a fine-tuned model: predictions) from several clients; count the answers."""
    outcome = asyncio.run(load(url.rstrip("/"), clients=clients, rate=rate, seconds=seconds, tokens=tokens))
    click.echo(table(outcome, clients=clients, seconds=seconds))


async def load(url: str, *, clients: int, rate: float, seconds: float, tokens: int) -> Outcome:
    """Requests at a steady rate from every client, all started at different moments."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as first:
        address, body = await _request(first, tokens)
    outcome = Outcome()
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            local = f"127.0.0.{number + 2}" if httpx.URL(url).host in ("127.0.0.1", "localhost") else None
            transport = httpx.AsyncHTTPTransport(local_address=local)
            client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, transport=transport)
            times = (began + (number / clients + turn) / rate for turn in range(int(seconds * rate)))
            group.create_task(_send(client, address, body, list(times), outcome))
    return outcome


async def _send(
    client: httpx.AsyncClient, address: str, body: dict[str, object], times: list[float], outcome: Outcome
) -> None:
    async with client:
        for at in times:
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            began = time.perf_counter()
            try:
                response = await client.post(address, json=body)
            except httpx.HTTPError as error:
                outcome.failures[type(error).__name__] += 1
                continue
            outcome.statuses[response.status_code] += 1
            if response.status_code == 200:
                outcome.seconds.append(time.perf_counter() - began)
            elif response.status_code == 429 and "retry-after" not in response.headers:
                outcome.without_retry_after += 1


async def _request(client: httpx.AsyncClient, tokens: int) -> tuple[str, dict[str, object]]:
    """Where to send what, for a text of so many tokens."""
    model = (await client.get("/api/model")).raise_for_status().json()
    text = " ".join(WORDS[number % len(WORDS)] for number in range(tokens))
    if "detect" in model["verbs"]:
        found = (await client.post("/api/detect", json={"text": text})).raise_for_status().json()["tokens"]
        return "/api/detect", {"text": text[: found[: max(1, tokens - 2)][-1]["end"]]}
    if "predict" not in model["verbs"] or model["task"]["kind"] == "span":
        raise ConfigError("URL", "this model neither detects nor predicts from one text")
    task = model["task"]
    row: dict[str, object] = {"words": text.split()} if task["kind"] == "tag" else {"text": text}
    return "/api/predict", {"rows": [row | ({"pair": text} if task["pairs"] else {})]}


def table(outcome: Outcome, *, clients: int, seconds: float) -> str:
    """The counts and the latencies, a line each."""
    answered = sorted(outcome.seconds)
    asked = sum(outcome.statuses.values()) + sum(outcome.failures.values())
    lines = [f"{clients} clients, {asked} requests in {seconds:g} s"]
    lines += [f"status {status}: {count}" for status, count in sorted(outcome.statuses.items())]
    lines += [f"{name}: {count}" for name, count in outcome.failures.items()]
    lines.append(
        f"failures: {sum(outcome.failures.values()) + sum(n for s, n in outcome.statuses.items() if s >= 500)}"
    )
    if outcome.without_retry_after:
        lines.append(f"429 without Retry-After: {outcome.without_retry_after}")
    if answered:
        by_share = {"median": statistics.median(answered), "p95": _at(answered, 0.95), "p99": _at(answered, 0.99)}
        lines.append("latency: " + ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in by_share.items()))
    return "\n".join(lines)


def _at(ranked: list[float], share: float) -> float:
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


if __name__ == "__main__":
    start(command)
