"""What MkDocs needs beyond its settings: pages from outside docs, notebooks as pages, links between all of these.

On a forge the pages link to files of the repository as they lie there. In the site the same links lead to the same
pages; MkDocs calls the functions `on_...` while it builds.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "tests/languages/README.md", "examples/near_duplicates.py")
"""Files outside docs that pages link to: part of the site, at the same path."""
FOLDERS = {"How-to": "how-to", "Explanation": "explanation", "Reference": "reference", "Lab": "lab"}
"""Parts of the navigation, and the folder of docs whose pages they hold."""
LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"(^```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, with pages that it does not name behind those of their kind; of the lab the newest first."""
    for entry in config.nav or []:
        for title, folder in FOLDERS.items():
            if title in entry:
                named = {page if isinstance(page, str) else next(iter(page.values())) for page in entry[title]}
                found = sorted(
                    (f"{folder}/{page.name}" for page in DOCS.glob(f"{folder}/*.md")), reverse=folder == "lab"
                )
                entry[title] += [page for page in found if page not in named]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs, those that lie outside it, and a page for each notebook."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for notebook in sorted(DOCS.glob("notebooks/*.ipynb")):
        page = notebook.relative_to(DOCS).with_suffix(".md").as_posix()
        files.append(File.generated(config, page, content=notebook_page(notebook)))
    return files


def notebook_page(notebook: Path) -> str:
    """A notebook's cells as Markdown, and where to get it."""
    cells: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    title, *rest = parts
    download = f"This page is a notebook: [`{notebook.name}`]({notebook.name}) runs in Jupyter."
    return "\n\n".join([title, download, *rest]) + "\n"


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with links that lead to the same files in the site."""
    here = page.file.src_uri
    place = posixpath.dirname(here if here in OUTSIDE else f"docs/{here}")

    def moved(found: re.Match[str]) -> str:
        before, target, anchor, after = found.groups()
        name = posixpath.normpath(posixpath.join(place, target))
        if name.endswith(".ipynb") and not here.startswith("notebooks/"):
            name = name.removesuffix(".ipynb") + ".md"
        inside = "index.md" if name == "README.md" else name.removeprefix("docs/")
        return f"{before}{posixpath.relpath(inside, posixpath.dirname(here) or '.')}{anchor or ''}{after}"

    parts = FENCE.split(markdown)  # what stands between fences, and the fenced blocks
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)
