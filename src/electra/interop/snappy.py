"""Snappy blocks uncompressed: literals, and copies of what came before. A checkpoint's index may be so compressed."""

from __future__ import annotations


def uncompress(data: bytes, *, limit: int) -> bytes:
    """The original bytes, at most `limit`; ValueError for what Snappy did not write."""
    try:
        return _uncompress(data, limit)
    except IndexError as error:
        raise ValueError("compressed bytes end too early") from error


def _uncompress(data: bytes, limit: int) -> bytes:
    size, at = 0, 0
    for shift in range(0, 35, 7):
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if size > limit:
        raise ValueError(f"compressed bytes claim {size}, more than {limit}")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        if tag & 3 == 0:  # a literal: its length here, or in one to four bytes after the tag
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                length = int.from_bytes(data[at : at + extra], "little") + 1
                at += extra
            if at + length > len(data):
                raise ValueError("compressed bytes end too early")
            out += data[at : at + length]
            at += length
        else:
            length, offset, at = _copy(data, at, tag)
            if not 0 < offset <= len(out):
                raise ValueError("compressed bytes copy from before their start")
            while length > 0:  # a copy may overlap what it writes
                piece = out[-offset:][:length] if offset >= length else out[-offset:]
                out += piece
                length -= len(piece)
        if len(out) > size:
            raise ValueError("compressed bytes give more than they claim")
    if len(out) != size:
        raise ValueError("compressed bytes give less than they claim")
    return bytes(out)


def _copy(data: bytes, at: int, tag: int) -> tuple[int, int, int]:
    """Length and distance of a copy, and where the next tag is."""
    if tag & 3 == 1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[at], at + 1
    count = 2 if tag & 3 == 2 else 4
    if at + count > len(data):
        raise ValueError("compressed bytes end too early")
    return (tag >> 2) + 1, int.from_bytes(data[at : at + count], "little"), at + count
