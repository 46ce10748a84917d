"""Protocol buffers without their library: the fields of a message, and the checksums of the files that hold them."""

import struct
from collections.abc import Iterator

#: A field's value: a number (varint), or its bytes.
Value = int | bytes

_FIXED = {1: 8, 5: 4}


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field; fixed-width numbers as their bytes.

    Raises:
        ValueError: this is no whole message.
    """
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(message, at)
        elif wire in _FIXED:
            size = _FIXED[wire]
        else:
            raise ValueError(f"wire type {wire}")
        if at + size > end:
            raise ValueError("cut")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("cut")
        byte = message[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7


def signed(value: Value) -> int:
    """An int64 field, which is sent as two's complement."""
    if not isinstance(value, int):
        raise ValueError("no varint")
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def float32(value: Value) -> float:
    return struct.unpack("<f", raw(value))[0]


def float64(value: Value) -> float:
    return struct.unpack("<d", raw(value))[0]


def raw(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("no bytes")
    return value


def text(value: Value) -> str:
    return raw(value).decode("utf-8", errors="replace")


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def masked_crc32c(content: bytes) -> int:
    """CRC-32C (Castagnoli), rotated and offset as TFRecord has it."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in content:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
