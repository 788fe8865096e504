"""Prose from Python source: the docstrings of a file, as clean paragraphs, without importing or running it."""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

MAX_SOURCE_BYTES = 2_000_000
MIN_DOC_SHARE = 0.15  # parsing is the cost; files with less text than this are code
_DOC_CALLS = frozenset({"add_newdoc", "add_docstr", "add_docstr_all", "_add_docstr", "merge_dicts"})
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

_UNDERLINE = re.compile(r"^[=\-~^*#.\"'+]{3,}\s*$")
_DIRECTIVE = re.compile(r"^\s*\.\. ")
_KEPT_DIRECTIVE = re.compile(r"^\s*\.\. (?:note|warning|tip|important|seealso|attention|hint|caution)::\s*")
_LIST_ITEM = re.compile(r"^\s*(?:[-*+•]|\(?\d{1,2}[.)])\s+")
_FIELD = re.compile(r"^\s*(?::(?:param|type|arg|raises?|returns?|rtype|keyword|var|ivar|yields?)[^:]*:|@\w+)\s*")
_GOOGLE_ITEM = re.compile(r"^\s*[\w*.]+(?: ?\([^()]*(?:\([^()]*\)[^()]*)*\))?:\s+(?=\S+ \S+)")
_NUMPY_ITEM = re.compile(r"^\s*[\w*., ]{1,60}(?: : .*| ?:)$")
_ROLE = re.compile(r":[a-z][a-z:+\-]*:`~?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{0,2}")
_MARKDOWN_LINK = re.compile(r"\[([^\]]+)\]\((?:[^)]*)\)")
_FOOTNOTE = re.compile(r"\s?\[[\w#*]{1,20}\]_")
_TICKS = re.compile(r"`+([^`]*)`+_{0,2}")
_STARS = re.compile(r"(\*{1,2})([^\s*](?:[^*]*[^\s*])?)\1")
_URL = re.compile(r"<?(?:https?://|www\.|doi:)[^\s>]+>?")
_SPACES = re.compile(r"\s+")
_WORDLIKE = re.compile(r"[^\W\d_]{1,}(?:['’\-][^\W\d_]+)*[.,;:!?)]*")
_COMMON_WORDS = """the a an of to is are and or in for if this that be with by on it as from not which can when will
    has have was but at any all one you we its each than then may should only must there they these into"""
_COMMON = frozenset(_COMMON_WORDS.split())


def prose_of_file(path: Path) -> list[list[str]]:
    """The file's docstrings in order, each a list of clean paragraphs; nothing for a file that does not parse."""
    try:
        if path.stat().st_size > MAX_SOURCE_BYTES:
            return []
        source = path.read_bytes()
    except OSError:
        return []
    if not _worth_parsing(source):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's files
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    documents = (paragraphs(text) for text in docstrings(tree))
    return [document for document in documents if document]


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Texts of modules, classes, functions and `add_newdoc`-like calls, in the order of the source."""
    stack: list[ast.stmt | ast.Module] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.Module, *_DEFINITIONS)):
            if isinstance(text := _docstring(node.body), str):
                yield text
            stack.extend(reversed(node.body))
        elif isinstance(node, (ast.If, ast.Try)):
            stack.extend(reversed(node.body))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _call_docs(node.value)


def paragraphs(docstring: str) -> list[str]:
    """The docstring's running text, one string a paragraph; code, tables, formulas and markup are left out."""
    found: list[str] = []
    for block in _blocks(inspect.cleandoc(docstring)):
        raw = " ".join(block)
        if raw.count("\\") <= 2 and is_prose(text := plain(raw)):  # more backslashes are a formula
            found.append(text)
    return found


def plain(text: str) -> str:
    """One line without reStructuredText or Markdown signs."""
    if "`" in text or "[" in text:
        text = _ROLE.sub(lambda m: m[1].rsplit(".", 1)[-1] if "." in m[1] else m[1], text)
        text = _LINK.sub(r"\1", text)
        text = _FOOTNOTE.sub("", text)
        text = _MARKDOWN_LINK.sub(r"\1", text)
        text = _TICKS.sub(r"\1", text)
    if "*" in text:
        text = _STARS.sub(r"\2", text)
    text = _URL.sub("", text) if "://" in text or "www." in text or "doi:" in text else text
    text = text.replace("\\ ", "").replace("\\", " ").replace("::", ":")
    return _SPACES.sub(" ", text).strip()


def is_prose(text: str) -> bool:
    """Whether a line reads as sentences: enough words, most of them words, some of them common ones."""
    if not 30 <= len(text) <= 5000 or "{{" in text or "$$" in text or not text.isprintable():
        return False
    words = text.split(" ")
    if len(words) < 6:
        return False
    wordlike = sum(1 for word in words if _WORDLIKE.fullmatch(word))
    common = sum(1 for word in words if word.lower() in _COMMON)
    return wordlike >= 0.72 * len(words) and common >= max(2, 0.12 * len(words))


def _worth_parsing(source: bytes) -> bool:
    quoted = sum(len(part) for mark in (b'"""', b"'''") for part in source.split(mark)[1::2])
    return quoted >= 200 and quoted >= MIN_DOC_SHARE * len(source)


def _docstring(body: list[ast.stmt]) -> object:
    first = body[0] if body else None
    return first.value.value if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) else None


def _call_docs(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in _DOC_CALLS:
        return
    for argument in call.args:
        for part in ast.walk(argument):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and "\n" in part.value:
                yield part.value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _blocks(text: str) -> Iterator[list[str]]:
    """Runs of lines that belong to one paragraph, without code, tables, directives, headings and option names."""
    block: list[str] = []
    at = 0  # the block's indentation
    hanging = False  # a list item, whose further lines are indented deeper
    skip_deeper_than: int | None = None  # inside a code block or a directive
    doctest = fenced = False
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        stripped, indent = line.strip(), _indent(line)
        fence = stripped.startswith("```")
        fenced ^= fence
        doctest = bool(stripped) and (doctest or stripped.startswith((">>>", "...", "In [")))
        if not stripped or fence or fenced or doctest:
            yield block
            block = []
            continue
        if skip_deeper_than is not None:
            if indent > skip_deeper_than:
                continue
            skip_deeper_than = None
        heading = _UNDERLINE.match(following.strip()) and _indent(following) == indent
        directive = _DIRECTIVE.match(line)
        if directive or heading or _UNDERLINE.match(stripped):
            yield block
            block = []
            if directive and not _KEPT_DIRECTIVE.match(line):
                skip_deeper_than = indent
            continue
        deeper = bool(following.strip()) and _indent(following) > indent
        name = deeper and (_NUMPY_ITEM.match(line) or len(stripped.split()) < 3)
        item = _LIST_ITEM.match(line) or _FIELD.match(line) or _GOOGLE_ITEM.match(line)
        if block and (item or name or not (indent == at or (hanging and indent > at))):
            yield block
            block = []
        if name and not block:
            continue  # `name : type` above its description
        if not block:
            at, hanging = indent, item is not None
        block.append(line[item.end() :].strip() if item else stripped)
        if stripped.endswith("::"):
            skip_deeper_than = indent
    yield block
