"""Encodes and decodes MessagePack, for payloads that JSON cannot represent: bytes, NaN, maps with other keys."""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, List, Tuple

#: The deepest nesting that servers accept.
NESTING_MAX = 64


def encode(value: object) -> bytes:
    """Encodes a value; raises TypeError for types that MessagePack does not have."""
    parts: List[bytes] = []
    _encode(value, parts, 0)
    return b"".join(parts)


def decode(data: bytes) -> Any:
    """Decodes one value; raises ValueError unless the bytes are exactly one."""
    try:
        value, end = _decode(data, 0, 0)
    except (IndexError, struct.error) as error:
        raise ValueError("the MessagePack data is incomplete") from error
    if end != len(data):
        raise ValueError("bytes after the end of the MessagePack data")
    return value


def _encode(value: object, parts: List[bytes], depth: int) -> None:
    if depth > NESTING_MAX:
        raise ValueError(f"the value is nested more than {NESTING_MAX} deep")
    if value is None:
        parts.append(b"\xc0")
    elif isinstance(value, bool):
        parts.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        parts.append(_encode_int(value))
    elif isinstance(value, float):
        parts.append(struct.pack(">Bd", 0xCB, value))
    elif isinstance(value, str):
        data = value.encode()
        parts += (_head(len(data), 0xA0, 32, (0xD9, 0xDA, 0xDB)), data)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        parts += (_head(len(data), 0, 0, (0xC4, 0xC5, 0xC6)), data)
    elif isinstance(value, (list, tuple)):
        parts.append(_head(len(value), 0x90, 16, (None, 0xDC, 0xDD)))
        for item in value:
            _encode(item, parts, depth + 1)
    elif isinstance(value, dict):
        parts.append(_head(len(value), 0x80, 16, (None, 0xDE, 0xDF)))
        for key, item in value.items():
            _encode(key, parts, depth + 1)
            _encode(item, parts, depth + 1)
    else:
        raise TypeError(f"a value of type {type(value).__name__} cannot be stored in a task")


def _encode_int(value: int) -> bytes:
    if -32 <= value < 128:
        return struct.pack("b" if value < 0 else "B", value)
    for code, form, low, high in _INTS:
        if low <= value <= high:
            return struct.pack(">B" + form, code, value)
    raise ValueError("an integer beyond 64 bits cannot be stored in a task")


_INTS: Tuple[Tuple[int, str, int, int], ...] = (
    (0xCC, "B", 0, 2**8 - 1),
    (0xCD, "H", 0, 2**16 - 1),
    (0xCE, "I", 0, 2**32 - 1),
    (0xCF, "Q", 0, 2**64 - 1),
    (0xD0, "b", -(2**7), -1),
    (0xD1, "h", -(2**15), -1),
    (0xD2, "i", -(2**31), -1),
    (0xD3, "q", -(2**63), -1),
)


def _head(size: int, fixed: int, below: int, codes: Tuple[Any, int, int]) -> bytes:
    """The type and the length of a string, a list or a map."""
    if size < below:
        return bytes((fixed | size,))
    for code, form, limit in zip(codes, ("B", "H", "I"), (2**8, 2**16, 2**32)):
        if code is not None and size < limit:
            return struct.pack(">B" + form, code, size)
    raise ValueError("the value is too large")


def _decode(data: bytes, at: int, depth: int) -> Tuple[Any, int]:
    if depth > NESTING_MAX:
        raise ValueError(f"the value is nested more than {NESTING_MAX} deep")
    code = data[at]
    at += 1
    if code < 0x80:
        return code, at
    if code >= 0xE0:
        return code - 0x100, at
    if code < 0x90:
        return _decode_map(data, at, code & 0x0F, depth)
    if code < 0xA0:
        return _decode_list(data, at, code & 0x0F, depth)
    if code < 0xC0:
        return _decode_text(data, at, code & 0x1F)
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        form = _NUMBERS[code]
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if code in _SIZED:
        form, read = _SIZED[code]
        size = struct.unpack_from(form, data, at)[0]
        return read(data, at + struct.calcsize(form), size, depth)
    raise ValueError(f"the MessagePack type 0x{code:02x} is not supported")


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise ValueError("the MessagePack data is incomplete")
    return data[at : at + size]


def _decode_text(data: bytes, at: int, size: int, _depth: int = 0) -> Tuple[Any, int]:
    return _slice(data, at, size).decode("utf-8", "surrogateescape"), at + size


def _decode_bytes(data: bytes, at: int, size: int, _depth: int) -> Tuple[Any, int]:
    return _slice(data, at, size), at + size


def _decode_list(data: bytes, at: int, size: int, depth: int) -> Tuple[Any, int]:
    items = []
    for _ in range(size):
        item, at = _decode(data, at, depth + 1)
        items.append(item)
    return items, at


def _decode_map(data: bytes, at: int, size: int, depth: int) -> Tuple[Any, int]:
    items = {}
    for _ in range(size):
        key, at = _decode(data, at, depth + 1)
        value, at = _decode(data, at, depth + 1)
        # A list or a map cannot be a key in Python.
        items[repr(key) if isinstance(key, (list, dict)) else key] = value
    return items, at


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_Reader = Callable[[bytes, int, int, int], Tuple[Any, int]]
_SIZED: Dict[int, Tuple[str, _Reader]] = {
    0xC4: (">B", _decode_bytes),
    0xC5: (">H", _decode_bytes),
    0xC6: (">I", _decode_bytes),
    0xD9: (">B", _decode_text),
    0xDA: (">H", _decode_text),
    0xDB: (">I", _decode_text),
    0xDC: (">H", _decode_list),
    0xDD: (">I", _decode_list),
    0xDE: (">H", _decode_map),
    0xDF: (">I", _decode_map),
}
