"""Excerpts of translated messages from wheels: `python make_excerpts.py WHEELS` rewrites the *.txt files beside it.

WHEELS is a folder with the wheels that README.md names. Every line is one translated message, in the catalogues'
order; a blank line ends a document. Left out are untranslated and repeated messages and those with hardly a letter.
"""

from __future__ import annotations

import gettext
import io
import re
import sys
import unicodedata
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PACKAGES = ("django-5", "django_allauth", "django_cms", "sphinx", "wagtail")
LOCALES = {
    "arabic": ("ar",),
    "chinese": ("zh_Hans", "zh_CN"),
    "french": ("fr",),
    "german": ("de",),
    "hindi": ("hi", "hi_IN"),
    "japanese": ("ja",),
    "korean": ("ko",),
    "russian": ("ru",),
    "thai": ("th",),
    "vietnamese": ("vi",),
}
LINES = 1000
LONGEST = 250  # characters; longer messages are whole e-mails and option lists
DOCUMENT_LINES = 20
_CATALOGUE = re.compile(r"/locales?/(\w+)/LC_MESSAGES/\w+\.mo$")
_PLACEHOLDER = re.compile(r"%\(\w+\)?\w?|%\w|\{\w*\}|<[^>]*>|https?:\S*")


def messages(wheel: Path, locales: tuple[str, ...]) -> Iterator[str]:
    """The translated messages of every catalogue of the wheel in one of the locales, on one line each."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            found = _CATALOGUE.search(name)
            if not found or found[1] not in locales:
                continue
            catalogue = gettext.GNUTranslations(io.BytesIO(archive.read(name)))
            # The mapping is private, but the public interface can only look up what the caller knows.
            for original, translated in catalogue._catalog.items():  # type: ignore[attr-defined]
                source = original[0] if isinstance(original, tuple) else original
                if source and translated and translated != source:
                    yield " ".join(translated.split())


def is_text(line: str) -> bool:
    """Whether the line holds words and not only placeholders, and is no whole page."""
    letters = sum(unicodedata.category(char)[0] == "L" for char in _PLACEHOLDER.sub("", line))
    return letters >= 4 and len(line) <= LONGEST


def excerpt(wheels: list[Path], locales: tuple[str, ...]) -> list[str]:
    """The first `LINES` distinct lines of the packages, in their order."""
    lines: dict[str, None] = {}
    for package in PACKAGES:
        (wheel,) = [path for path in wheels if path.name.startswith(package)]
        lines.update(dict.fromkeys(line for line in messages(wheel, locales) if is_text(line)))
    return list(lines)[:LINES]


def main(folder: Path) -> None:
    wheels = sorted(folder.glob("*.whl"))
    for language, locales in LOCALES.items():
        lines = excerpt(wheels, locales)
        documents = [lines[at : at + DOCUMENT_LINES] for at in range(0, len(lines), DOCUMENT_LINES)]
        text = "\n\n".join("\n".join(document) for document in documents) + "\n"
        (HERE / f"{language}.txt").write_text(text, encoding="utf-8")
        print(f"{language:12}{len(lines):6} lines {len(text.encode()):8} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
