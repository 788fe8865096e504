"""CRC-32C of bytes, fast enough for model files in NumPy: what TensorFlow's files are checked by.

A CRC is linear: the register after two pieces is the first one's register moved over the second piece's length, XORed
with the second one's. So many pieces are computed side by side, and joined in pairs.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Registers = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
_PIECES = 1 << 12
_MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | memoryview | NDArray[np.uint8]) -> int:
    """The CRC-32C of the data."""
    array = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
    length = len(array) // (2 * _PIECES) * 2
    whole = length * _PIECES
    register = 0xFFFFFFFF
    if length:
        pieces = np.zeros(_PIECES, np.uint32)
        pieces[0] = register
        pairs = np.ascontiguousarray(array[:whole]).view("<u2").reshape(_PIECES, length // 2)
        table = _two_bytes()
        for pair in np.ascontiguousarray(pairs.T):
            pieces = table.take((pieces ^ pair) & 0xFFFF) ^ pieces >> 16
        while len(pieces) > 1:
            pieces = _times(_moved(length), pieces[::2]) ^ pieces[1::2]
            length *= 2
        register = int(pieces[0])
    of_a_byte = _table().tolist()
    for byte in array[whole:].tobytes():  # plain numbers: thousands of bytes one by one cost more in NumPy
        register = of_a_byte[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """The form in which TensorFlow stores a CRC, so that a CRC of data with CRCs in it stays useful."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def _next(registers: Registers, byte: NDArray[np.uint8] | np.uint8) -> Registers:
    """The registers after one more byte each."""
    changed: Registers = _table()[(registers ^ byte) & 0xFF] ^ (registers >> 8)
    return changed


@cache
def _moved(length: int) -> Registers:
    """The columns of the matrix that moves a register over `length` zero bytes."""
    if length == 1:
        return _next(np.uint32(1) << np.arange(32, dtype=np.uint32), np.uint8(0))
    half = _moved(length // 2)
    both = _times(half, half)
    return _times(_moved(1), both) if length % 2 else both


def _times(columns: Registers, registers: Registers) -> Registers:
    """The 32 x 32 bit matrix with these columns, times each register."""
    result = np.zeros_like(registers)
    for bit in range(32):
        result ^= np.where(registers >> bit & 1, columns[bit], 0).astype(np.uint32)
    return result


@cache
def _two_bytes() -> Registers:
    return _next(_next(np.arange(1 << 16, dtype=np.uint32), np.uint8(0)), np.uint8(0))


@cache
def _table() -> Registers:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    return table
