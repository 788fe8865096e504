"""Text files as UTF-8: encodings that are marked, declared or named are read, others are refused with a guess."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from electra.corpus.streams import COMPRESSIONS, Stream
from electra.errors import ConfigError, DataError

_HEAD_BYTES = 4096
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",  # before UTF-16, whose mark it begins with
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
_CHARSET = re.compile(rb"<(?:meta[^>]*?\bcharset|\?xml[^>]*?\bencoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_ON_PAGES = {  # what browsers read for these names
    "ascii": "windows-1252",
    "iso8859-1": "windows-1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
}
_DAMAGED = "utf-8"
_GUESS_BYTES = 1 << 20
_ALL_HIGH = 0.7  # Cyrillic words have no ASCII letters, the accented words of Western languages have
_SYMBOL_IN_WORD = re.compile("[a-zà-ÿ][¡-©«¬®-¶¹»-¿](?=[a-zà-ÿ])")  # Latin-2's letters, read as windows-1252


def check_encoding(name: str) -> None:
    """ConfigError where Python has no text encoding of this name."""
    try:
        "a".encode(name)
    except (LookupError, UnicodeError, ValueError) as error:
        fix = "windows-1252, utf-16, cp932 (Shift-JIS) or gb18030, for example"
        raise ConfigError("--encoding", f"'{name}' is not known", fix=fix) from error


class Utf8Stream:
    """The stream's text as UTF-8 bytes, without a byte order mark.

    Its encoding is that of a byte order mark, the given one, the one that a page names (`html`), or UTF-8. UTF-16 is
    known without a mark too, by its NUL bytes.
    """

    def __init__(self, stream: Stream, *, encoding: str | None, html: bool = False) -> None:
        self._stream = stream
        self._first = stream.read(_HEAD_BYTES)
        mark = next((mark for mark in _MARKS if self._first.startswith(mark)), b"")
        self._encoding = _MARKS.get(mark) or encoding or _declared(self._first, html=html) or _by_nul(self._first)
        self._first = self._first[len(mark) :]
        by_itself = mark or not encoding
        self._fix = "save it as UTF-8" if by_itself else "--encoding NAME names another encoding"
        plain = codecs.lookup(self._encoding).name == "utf-8"
        self._decoder = None if plain else codecs.getincrementaldecoder(self._encoding)()

    def read(self, count: int) -> bytes:
        """About `count` bytes, whole characters where the text was not UTF-8; none at the end."""
        raw, self._first = self._first, b""
        raw += self._stream.read(max(0, count - len(raw)))
        if self._decoder is None:
            return raw
        text = ""
        while not text:
            try:
                text = self._decoder.decode(raw, final=not raw)
            except (UnicodeError, ValueError) as error:
                reason = f"is not {self._encoding} text: {error}"
                raise DataError(self._stream.name, reason, fix=self._fix) from error
            if not raw:
                break
            raw = b"" if text else self._stream.read(count)
        return text.encode(errors="replace")


def not_utf8(source: str, payload: bytes, error: UnicodeDecodeError, *, line: int, option: bool) -> DataError:
    """What to tell about a file whose line `line` begins this payload: where it is not UTF-8, and how to read it.

    `option`: whether the command has --encoding.
    """
    number = line + payload.count(b"\n", 0, error.start)
    column = error.start - (payload.rfind(b"\n", 0, error.start) + 1) + 1
    reason = f"byte {column} of line {number} (0x{payload[error.start]:02x}) is not valid UTF-8"
    found = guess(payload)
    if found is None:
        known = "--encoding NAME, such as windows-1252, cp932 or gb18030"
        return DataError(source, reason, fix=known if option else "save it as UTF-8")
    path = Path(source)
    converts = path.suffix.lower() not in COMPRESSIONS
    new = path.with_name(f"{path.stem}.utf8{path.suffix}")
    iconv = f"-t UTF-8 {shlex.quote(source)} > {shlex.quote(str(new))}"
    if found == _DAMAGED:
        fix = f"drop the damaged bytes: iconv -c -f UTF-8 {iconv}" if converts else "unpack and mend it"
        return DataError(source, f"{reason}, the rest is", fix=fix)
    name = found.upper().replace("_", "-")
    ways = [f"--encoding {found}"] if option else []
    if converts:
        ways.append(f"convert it: iconv -f {name} {iconv}")
    return DataError(source, f"{reason}; it looks like {found}", fix=", or ".join(ways) or "unpack and convert it")


def guess(payload: bytes) -> str | None:
    """The likely encoding of lines that are not UTF-8; `utf-8` where a few bytes are damaged, None in doubt."""
    if len(payload) > _GUESS_BYTES:
        payload = payload[: payload.rfind(b"\n", 0, _GUESS_BYTES)]
    replaced = payload.decode(errors="replace")
    damaged = replaced.count("\ufffd")
    if sum(char > "\x7f" for char in replaced) > 10 * damaged:
        return _DAMAGED
    high = re.findall(rb"[\x80-\xff]+", payload)
    size = sum(map(len, high))
    words = re.findall(rb"[A-Za-z]*[\x80-\xff][A-Za-z\x80-\xff]*", payload)
    mixed = size < max(_ALL_HIGH * sum(map(len, words)), 2 * len(high))
    western = _western(payload)
    if western and size < 0.25 * len(payload) and sum(len(run) == 1 for run in high) > 0.8 * len(high):
        return western
    for name, (likely, least) in _LIKELY.items():
        if not (mixed and likely is _small_cyrillic) and _share(payload, name, likely) >= least:
            return name
    return western if mixed else None


def _declared(head: bytes, *, html: bool) -> str | None:
    """The encoding that a page names, where Python knows it."""
    found = _CHARSET.search(head) if html else None
    if found is None:
        return None
    try:
        name = codecs.lookup(found[1].decode()).name
        "a".encode(name)
    except (LookupError, UnicodeError, ValueError):
        return None
    return None if name.startswith(("utf-16", "utf-32")) else _ON_PAGES.get(name, name)


def _by_nul(head: bytes) -> str:
    """UTF-16 where every second byte of much of the text is NUL, else UTF-8."""
    half = len(head) // 2
    even, odd = head[0 : 2 * half : 2].count(0), head[1 : 2 * half : 2].count(0)
    for name, high, low in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if half >= 4 and high > 0.4 * half and low < 0.02 * half and _decodes(head[: 2 * half], name, cut=True):
            return name
    return "utf-8"


def _decodes(payload: bytes, name: str, *, cut: bool = False) -> str | None:
    """The name, where the bytes are text of this encoding, of which the end may be `cut` off."""
    try:
        codecs.getincrementaldecoder(name)().decode(payload, final=not cut)
    except UnicodeError:
        return None
    return name


def _western(payload: bytes) -> str | None:
    """An encoding of Western Europe, unless it puts symbols into the words."""
    name = _decodes(payload, "windows-1252") or "iso-8859-1"
    text = payload.decode(name)
    symbols = len(_SYMBOL_IN_WORD.findall(text))
    return name if 20 * symbols < sum(char > "\x7f" for char in text) else None


def _share(payload: bytes, name: str, likely: Callable[[str], bool]) -> float:
    """The share of likely ones among the characters beyond ASCII; 0 where it is not this encoding."""
    try:
        wide = [char for char in payload.decode(name) if char > "\x7f"]
    except UnicodeError:
        return 0.0
    return sum(map(likely, wide)) / max(1, len(wide))


def _frequent(name: str, first: int, last: int) -> Callable[[str], bool]:
    """Whether a character is one of the frequent ones, which Chinese standards put first."""

    def frequent(char: str) -> bool:
        try:
            return char in "，。、：；？！“”（）《》" or first <= char.encode(name)[0] <= last
        except UnicodeError:
            return False

    return frequent


def _kana(char: str) -> bool:
    return "\u3041" <= char <= "\u30ff"


def _small_cyrillic(char: str) -> bool:
    return "\u0430" <= char <= "\u045f"


def _polish(char: str) -> bool:
    return char in "ąćęłńóśźżĄĆĘŁŃÓŚŹŻ"


_LIKELY: dict[
    str, tuple[Callable[[str], bool], float]
] = {  # in this order: Japanese may be Korean too, and that Chinese
    "cp932": (_kana, 0.25),
    "euc_jp": (_kana, 0.25),
    "cp949": (lambda char: "\uac00" <= char <= "\ud7a3", 0.9),
    "gb18030": (_frequent("gb2312", 0xB0, 0xD7), 0.7),
    "big5": (_frequent("big5", 0xA4, 0xC6), 0.7),
    "windows-1251": (_small_cyrillic, 0.7),
    "koi8-r": (_small_cyrillic, 0.7),
    "iso-8859-2": (_polish, 0.9),
    "windows-1250": (_polish, 0.9),
}
