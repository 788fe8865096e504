"""What stands between the network and the API: who may ask, how much, how often; the headers of every answer."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import math
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any

from electra.serve.rate import RateLimit

MAX_BODY_BYTES = 256 << 10
BODY_TIMEOUT_S = 20.0
_DRAINED_BYTES = 8 << 20  # of a body that is refused: a client that is still sending could not read the answer

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Refused(Exception):
    """An answer of the guard's own."""

    def __init__(self, status: int, reason: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: App, *, rate: RateLimit, hosts: Collection[str] = ()) -> None:
        """`hosts` are further names that this server may be asked for by."""
        self._app, self._rate = app, rate
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            self._admit(scope)
            body = await _body(scope, receive)
        except Refused as refused:
            await _answer(refused, send_with_headers)
            return
        try:
            await self._app(scope, _replayed(body, receive), send_with_headers)
        except Exception:  # a bug: it has been answered, and the connection may go on
            logging.getLogger("electra.serve").exception("a request failed")

    def _admit(self, scope: Scope) -> None:
        """Refuse names of other sites (DNS rebinding), pages of other sites, and who asks too often."""
        headers = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            reason = "the Host header names another site; electra serve --allow-host NAME admits a name"
            raise Refused(400, reason)
        origin = next((value.decode("latin-1") for name, value in headers if name == b"origin"), None)
        if origin is not None and origin.partition("://")[2].lower() != hosts[0].lower():
            raise Refused(403, "requests of other sites' pages are refused")
        client = scope.get("client")
        if wait := self._rate.wait_s(client[0] if client else ""):
            raise Refused(429, "too many requests; ask again later", retry_after_s=wait)

    def _is_ours(self, host: str) -> bool:
        """An IP address cannot be rebound; a name must be known."""
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        else:
            name = name.partition(":")[0]
        with contextlib.suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name in self._hosts


async def _body(scope: Scope, receive: Receive) -> bytes:
    """The whole body; refused where it is too large or does not come."""
    too_large = Refused(413, f"the body is larger than {MAX_BODY_BYTES >> 10} KiB")
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] != "http.request":  # the client went away
                    raise Refused(400, "the body is incomplete")
                part = message.get("body", b"")
                size += len(part)
                if size <= MAX_BODY_BYTES:
                    parts.append(part)
                elif size > _DRAINED_BYTES or int(declared) > _DRAINED_BYTES:
                    raise too_large
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise Refused(408, f"the body did not come within {BODY_TIMEOUT_S:.0f} s") from None
    if size > MAX_BODY_BYTES:
        raise too_large
    return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` for the application: the body first, then whatever the connection says."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


async def _answer(refused: Refused, send: Send) -> None:
    headers = [(b"content-type", b"application/json")]
    if refused.retry_after_s:
        headers.append((b"retry-after", str(math.ceil(refused.retry_after_s)).encode()))
    if refused.status in (408, 413):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"error": refused.reason}).encode()})
