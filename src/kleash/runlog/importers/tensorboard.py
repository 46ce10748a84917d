"""TensorBoard's event files: TFRecord frames of Event messages, read without TensorBoard, checksums checked."""

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kleash.errors import RunError
from kleash.runlog.importers.files import open_log
from kleash.runlog.importers.protobuf import fields, float32, float64, masked_crc32c, raw, signed, text
from kleash.runlog.importers.table import Table
from kleash.runlog.importers.vocabulary import Raw

PATTERN = "*tfevents*"
#: An event may hold images; a larger frame is damage.
MOST_FRAME = 256_000_000
#: A scalar's event is some hundred bytes; what is larger holds no scalar, and is skipped unread.
MOST_SCALAR = 1_000_000
#: TensorProto: data type → struct format; float_val, double_val, int_val, int64_val by field.
_TYPES = {1: "f", 2: "d", 3: "i", 9: "q"}
_FLOAT, _DOUBLE = 1, 2
#: Field of an Event that says a writer has begun, and its status.
SESSION, START = 7, 1


def read_tensorboard(paths: Sequence[Path], keep: frozenset[str] | None = None) -> Raw:
    """The scalars of the event files of one run, in the order given.

    Raises:
        RunError: none of them is an event file with a scalar, or two runs are mixed.
    """
    where = paths[0] if len(paths) == 1 else paths[0].parent
    table, notes = Table(str(where), keep), []
    for path in paths:
        for frame in frames(path, notes):
            try:
                step, scalars, anew = content_of(frame)
            except ValueError:
                notes.append(f"{path.name} has an event that cannot be read, which is left out")
                continue
            if anew and table.steps:
                table.void(step)
            if scalars:
                table.add(step, scalars)
    if not len(table.steps):
        more = f" ({notes[0]})" if notes else ""
        raise RunError(f"{where} has no scalar of TensorBoard{more}")
    return Raw(path=where, table=table, container="TensorBoard", notes=notes)


def frames(path: Path, notes: list[str]) -> Iterator[bytes]:
    """The messages of a file up to its end or its first damage, which goes into the notes."""
    with open_log(path) as file:
        while head := file.read(12):
            if len(head) < 12:
                notes.append(f"{path.name} ends in the middle of an event")
                return
            size, crc = struct.unpack("<QI", head)
            if masked_crc32c(head[:8]) != crc or size > MOST_FRAME:
                notes.append(f"{path.name} is damaged at byte {file.tell() - 12}; what comes after is left out")
                return
            if size > MOST_SCALAR:
                file.seek(size + 4, 1)
                continue
            body = file.read(size + 4)
            if len(body) < size + 4:
                notes.append(f"{path.name} ends in the middle of an event")
                return
            if masked_crc32c(body[:-4]) != struct.unpack("<I", body[-4:])[0]:
                notes.append(f"{path.name} is damaged at byte {file.tell() - len(body)}; what comes after is left out")
                return
            yield body[:-4]


def content_of(event: bytes) -> tuple[int, list[tuple[str, float]], bool]:
    """Step and scalars of an Event, and whether a writer says that it begins anew there: what is later is void.

    Raises:
        ValueError: it is damaged.
    """
    step, found, anew = 0, [], False
    for number, value in fields(event):
        if number == 2:
            step = signed(value)
        elif number == SESSION:
            anew = any(part == 1 and signed(status) == START for part, status in fields(raw(value)))
        elif number == 5:
            for part, summary in fields(raw(value)):
                if part == 1 and (scalar := _scalar(raw(summary))) is not None:
                    found.append(scalar)
    return step, found, anew


def _scalar(value: bytes) -> tuple[str, float] | None:
    tag, number = "", None
    for part, content in fields(value):
        if part == 1:
            tag = text(content)
        elif part == 2:
            number = float32(content)
        elif part == 8:
            number = _tensor(raw(content))
    return None if number is None else (tag, number)


def _tensor(content: bytes) -> float | None:
    """The number of a tensor that is a scalar; None for others."""
    kind, shape, packed, single = 0, b"", b"", None
    for part, value in fields(content):
        if part == 1:
            kind = signed(value)
        elif part == 2:
            shape = raw(value)
        elif part == 4:
            packed = raw(value)
        elif part == 5:
            single = _first(raw(value), 4, float32)
        elif part == 6:
            single = _first(raw(value), 8, float64)
    if kind not in _TYPES or shape:
        return None
    if single is not None and kind in (_FLOAT, _DOUBLE):
        return single
    layout = "<" + _TYPES[kind]
    return float(struct.unpack(layout, packed)[0]) if len(packed) == struct.calcsize(layout) else None


def _first(content: bytes, size: int, read: Callable[[bytes], float]) -> float | None:
    return read(content) if len(content) == size else None
