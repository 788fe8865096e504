"""What a page owes its readers, checked in a browser: names, headings, tables, contrast, focus, phone width."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = "/usr/bin/chromium"
PHONE, DESK = 390, 1180

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
FOCUS = """() => { const node = document.activeElement, style = getComputedStyle(node);
  const drawn = [node.outerHTML.slice(0, 80), style.outlineStyle, parseFloat(style.outlineWidth)];
  return node === document.body ? '' : drawn; }"""


@contextmanager
def browser() -> Iterator[Any]:
    """The system's Chromium; the test is skipped where it or playwright is absent."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"{CHROMIUM} is not there")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield opened
        finally:
            opened.close()


def problems(page: Any) -> list[str]:
    """Everything that is wrong with an open page, folded parts unfolded."""
    page.evaluate("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    found: list[str] = page.evaluate(SCRIPT)
    return found


def unseen_focus(page: Any, *, most: int = 200) -> list[str]:
    """Go through the page by Tab: the stops whose focus cannot be seen; at least the skip link must be one."""
    stops = []
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = page.evaluate(FOCUS)
        if not stop or stop[0] in [one[0] for one in stops[:1]]:
            break
        stops.append(stop)
    assert stops and "skip" in stops[0][0], stops[:1]
    return [html for html, style, width in stops if style == "none" or width < 2]
