"""The documentation as a site: built strictly, whole, the same as on a forge, and loading nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from page_checks import PHONE, browser

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
COUNTED = ("h1", "h2", "h3", "li", "ol", "pre", "table", "th", "ul", "img")
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "object": "data"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed (pip install 'electra[docs]')")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Elements(HTMLParser):
    """How often each counted element occurs, and everything that a browser would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()
        self.loaded: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in COUNTED:
            self.count[tag] += 1
        if tag in LOADED and attributes.get("rel") not in ("next", "prev", "canonical"):
            self.loaded.append(attributes.get(LOADED[tag]) or "")


def article(page: Path) -> str:
    """The text of a built page, without navigation."""
    found = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found, page
    return found[0]


def test_every_page_is_there_and_reads_as_on_a_forge(site: Path) -> None:
    """The headings, lists, tables, blocks and pictures that CommonMark sees, and no others."""
    forge = MarkdownIt("commonmark").enable("table")
    different = {}
    for page in PAGES:
        built = Elements(article(site / page.relative_to(ROOT / "docs").with_suffix(".html"))).count
        wanted = Elements(forge.render(page.read_text(encoding="utf-8"))).count
        if built != wanted:
            different[page.name] = {tag: (wanted[tag], built[tag]) for tag in COUNTED if built[tag] != wanted[tag]}
    assert not different
    for outside in ("CONTRIBUTING.html", "CHANGELOG.html", "SECURITY.html", "examples/near_duplicates.py"):
        assert (site / outside).is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    remote = re.compile(r"^(https?:)?//")
    pages = list(site.rglob("*.html"))
    found = [
        (page.name, address)
        for page in pages
        for address in Elements(page.read_text(encoding="utf-8")).loaded
        if remote.match(address)
    ]
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        addresses = re.findall(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", text)
        found += [(sheet.name, one or other) for one, other in addresses if remote.match(one or other)]
    assert len(pages) > len(PAGES) and not found
    # The theme's script fetches a drawing library for pages with such drawings; there must be none.
    assert not [page.name for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")]


def test_a_browser_asks_for_files_of_the_site_only(site: Path) -> None:
    """From disk, at phone width: no address elsewhere, no error, nothing wider than the screen, search answers."""
    with browser() as opened:
        shown = opened.new_page(viewport={"width": PHONE, "height": 800})
        asked: list[str] = []
        errors: list[str] = []
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("pageerror", lambda error: errors.append(str(error)))
        for name in ("index.html", "tutorial.html", "reference/config.html"):
            shown.goto((site / name).as_uri())
            width = shown.evaluate("document.documentElement.scrollWidth")
            assert width <= PHONE, (name, width)
        shown.click("label[for=__search]")
        shown.focus("input[name=query]")
        shown.keyboard.type("confusion")
        shown.wait_for_selector(".md-search-result__item", timeout=20_000)
        assert not errors and not [one for one in asked if not one.startswith(("file:", "blob:", "data:"))]
