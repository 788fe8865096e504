"""Every link and image in the documentation leads somewhere, and every page can be reached."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```[^\n]*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")


def links(text: str) -> list[str]:
    """The targets of a page's links and images; what stands in code is none."""
    prose = CODE.sub("`code`", FENCE.sub("", text))
    return [one or other for one, other in LINK.findall(prose)]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = 0
        while (unique := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(unique)
    return found


def broken(page: Path, target: str) -> str:
    """What is wrong with a relative link of a page; an empty string where nothing is."""
    name, _, anchor = unquote(target).partition("#")
    path = (page.parent / name).resolve() if name else page
    if not path.exists():
        return f"{page.relative_to(ROOT)}: {target}: no such file"
    if ROOT not in path.parents:
        return f"{page.relative_to(ROOT)}: {target}: outside the repository"
    if anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
        return f"{page.relative_to(ROOT)}: {target}: no such heading"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [one for one in links(page.read_text(encoding="utf-8")) if "://" not in one and "mailto:" not in one]
    assert [wrong for target in targets if (wrong := broken(page, target))] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        names = [target.partition("#")[0] for target in links(page.read_text(encoding="utf-8")) if "://" not in target]
        waiting += [(page.parent / name).resolve() for name in names if name]
    assert sorted(str(page.relative_to(ROOT)) for page in set(PAGES) - reached) == []


def test_every_image_is_shown() -> None:
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in links(page.read_text(encoding="utf-8"))
        if target.endswith(".svg")
    }
    assert sorted(path.name for path in set((ROOT / "docs").rglob("*.svg")) - shown) == []


@pytest.mark.parametrize(
    "target", ["nowhere.md", "../../outside.md", "README.md#no-such-heading", "docs/index.md#no-such-heading"]
)
def test_the_check_sees(target: str) -> None:
    assert broken(ROOT / "README.md", target)


def test_the_check_reads_headings_as_github_does() -> None:
    assert anchors("# A `code`, and more\n## Same\n## Same\n```\n# not one\n```\n") == {
        "a-code-and-more",
        "same",
        "same-1",
    }
