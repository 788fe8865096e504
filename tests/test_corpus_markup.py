"""HTML pages and Markdown notes as text, and files of a folder that are not read are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_corpus_readers import read

from electra.corpus.markup import html_paragraphs, markdown_paragraphs
from electra.corpus.sources import resolve
from electra.errors import DataError

PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>Rivers &amp; lakes</title>
<style>p > a { color: red }</style><script>if (1 < 2) document.write("<p>no</p>")</script></head>
<body><nav><ul><li>Home<nav>deeper</nav></li></ul></nav>
<!-- a comment <p>not shown</p> -->
<h1>The <em>Rhine</em></h1>
<p title="a > b">It rises in the
 Alps<sup>1</sup> and is 1&nbsp;233&#x20;km long: 3 < 4.<p>An unclosed paragraph<br>on two lines</p>
<ul><li>Basel<li><a href='x'>Köln</a></ul>
<table><tr><td>one</td><td>two</td></tr></table>
<pre>first line
  second line</pre>
</body></html>
"""
PARAGRAPHS = [
    "Rivers & lakes",
    "The Rhine",
    "It rises in the Alps1 and is 1 233 km long: 3 < 4.",
    "An unclosed paragraph",
    "on two lines",
    "Basel",
    "Köln",
    "one",
    "two",
    "first line",
    "second line",
]

NOTE = """---
title: not text
---
# The **Rhine** #

It rises in the *Alps*, see [the map](https://example.org/map "Map") and
![a photo](photo.png), with `code` and snake_case names; 2*3*4 stays.

Setext heading
==============

> A quote
> over two lines.

- first item
  goes on
- [x] second __item__
1. numbered

| name | length |
|------|-------:|
| Rhine | 1233 |

```python
x = a_b * c  # not a heading
# not a heading either
```

---
[ref]: https://example.org
Escaped \\*stars\\* &amp; <b>tags</b>.
"""
LINES = [
    "The Rhine",
    "It rises in the Alps, see the map and a photo, with code and snake_case names; 2*3*4 stays.",
    "Setext heading",
    "A quote over two lines.",
    "first item goes on",
    "second item",
    "numbered",
    "name length",
    "Rhine 1233",
    "x = a_b * c  # not a heading",
    "# not a heading either",
    "Escaped *stars* & tags.",
]


def test_a_page_as_paragraphs() -> None:
    assert html_paragraphs(PAGE) == PARAGRAPHS


def test_a_note_as_lines() -> None:
    assert markdown_paragraphs(NOTE) == LINES


def test_defect_pages_and_notes_are_read_one_document_each(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE)
    (tmp_path / "b.md").write_text(NOTE)
    assert read(tmp_path / "a.html") == [PARAGRAPHS]
    assert read(tmp_path / "b.md", block_bytes=1 << 20) == [[" ".join(line.split()) for line in LINES]]


@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ('<meta charset="iso-8859-1">', "windows-1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "windows-1251"),
        ("<meta charset=Shift_JIS>", "cp932"),
        ("<meta charset=gb2312>", "gb18030"),
        ("<meta charset=utf-16>", "utf-8"),  # it cannot be, or this could not be read
        ("<meta charset=nonsense>", "utf-8"),
    ],
)
def test_a_page_names_its_encoding(tmp_path: Path, head: str, encoding: str) -> None:
    text = {"windows-1252": "„schön“", "windows-1251": "река", "cp932": "川です", "gb18030": "河流"}.get(
        encoding, "река"
    )
    (tmp_path / "a.htm").write_bytes(f"<html>{head}<p>{text}</p>".encode(encoding))
    assert read(tmp_path / "a.htm") == [[text]]


@pytest.mark.parametrize(
    "part",
    [
        "<",
        "<a ",
        "<!--",
        "<![CDATA[",
        '<a b="',
        "<a b='>",
        "</",
        "<?",
        "&",
        "<script>",
        "<nav>",
        "[",
        "[a](",
        "*_",
        "- ",
    ],
)
def test_promise_18_hostile_markup_takes_no_time(part: str) -> None:
    """On 60 kB of the second one the standard library's parser takes two minutes."""
    for text in (part * (200_000 // len(part)), part * (200_000 // len(part)) + ">"):
        assert sum(map(len, html_paragraphs(text))) <= len(text)
        assert sum(map(len, markdown_paragraphs(text))) <= len(text)


def test_promise_18_a_huge_page_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_bytes(b"<p>text " * (3 << 20))
    with pytest.raises(DataError, match=r"a\.html: is a page of more than 16 MiB"):
        read(tmp_path / "a.html", block_bytes=4 << 20)


def test_defect_files_that_are_left_out_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.txt", "b.md", "c.html", "d.pdf", "deep/e.PDF", "f.docx", "README", ".hidden.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = resolve([str(tmp_path)], spool=tmp_path / "spool", text_column="text")
    assert [one.name for one in found] == ["a.txt", "b.md", "c.html"]
    said = capsys.readouterr().err
    assert "4 files left out" in said and "2 .pdf" in said and "1 .docx" in said and "1 without a suffix" in said
    with pytest.raises(DataError, match=r"no text in this folder \(1 \.pdf are there\)"):
        resolve([str(tmp_path / "deep")], spool=tmp_path / "spool", text_column="text")
