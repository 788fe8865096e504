"""How often a client, and all of them together, may ask."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_CLIENTS = 4096
BURST_S = 2.0
"""A client that was silent may send as many requests at once as it may in this time."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RateLimit:
    """Token buckets: one a client, one over all."""

    def __init__(self, *, per_client: float, overall: float, now: Callable[[], float] = time.monotonic) -> None:
        """Requests a second."""
        self._per_client, self._overall, self._now = per_client, overall, now
        self._all = _Bucket(_burst(overall), now())
        self._clients: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_s(self, client: str) -> float:
        """0 where the client may ask now, which counts; else the seconds until it may."""
        now = self._now()
        own = self._clients.pop(client, None) or _Bucket(_burst(self._per_client), now)
        self._clients[client] = own  # the newest last
        while len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        _fill(own, self._per_client, now)
        _fill(self._all, self._overall, now)
        wait = max((1 - own.tokens) / self._per_client, (1 - self._all.tokens) / self._overall)
        if wait > 0:
            return wait
        own.tokens -= 1
        self._all.tokens -= 1
        return 0.0


def _burst(rate: float) -> float:
    return max(1.0, rate * BURST_S)


def _fill(bucket: _Bucket, rate: float, now: float) -> None:
    bucket.tokens = min(_burst(rate), bucket.tokens + (now - bucket.filled_at) * rate)
    bucket.filled_at = now
