"""Tests the generated classes with the vectors."""

import json

from queues import TypeTask

FIELDS = {
    "int": "int",
    "int64": "match",
    "string": "list",
    "bool": "from_",
    "[]byte": "field",
    "[]int": "encode_",
    "[]int64": "numbers",
}
ORDER = list(FIELDS.values())

checked = 0
for vector in json.load(open("vectors.json", encoding="utf-8")):
    name = FIELDS[vector["type"]]
    value = vector["value"]
    if vector["type"] == "[]byte":
        value = bytes.fromhex(value)
    # The task has seven fields; the others have their zero values.
    zero = TypeTask().encode()
    one = bytes.fromhex(vector["payload"])[1:]
    zeros = [b"\x00", b"\x00", b"\xa0", b"\xc2", b"\xc4\x00", b"\x90", b"\x90"]
    assert zero == b"\x97" + b"".join(zeros), zero
    zeros[ORDER.index(name)] = one
    wanted = b"\x97" + b"".join(zeros)
    task = TypeTask(**{name: value})
    assert task.encode() == wanted, (vector, task.encode().hex())
    assert TypeTask.decode(wanted) == task, vector
    # An older producer knows the fields up to this one only; a newer one knows one more.
    until = ORDER.index(name) + 1
    assert TypeTask.decode(bytes([0x90 | until]) + b"".join(zeros[:until])) == task, vector
    assert TypeTask.decode(b"\x98" + wanted[1:] + b"\x81\xa1a\xcb" + bytes(8)) == task, vector
    checked += 1

BAD = [b"", b"\x81", b"\x91", b"\x91\x01\x01", b"\x91\xa1a", b"\x91\xcf" + b"\xff" * 8, b"\x98" + b"\x00" * 9,
       b"\x93\x00\x00\xa2\xff\xfe", b"\x96\x00\x00\xa0\xc2\xc4\x00\xdd\xff\xff\xff\xff"]
for payload in BAD:
    try:
        TypeTask.decode(payload)
    except ValueError:
        continue
    raise AssertionError(payload)
for large in (2**63, -(2**63) - 1):
    try:
        TypeTask(int=large).encode()
    except ValueError:
        continue
    raise AssertionError(large)

print(f"{checked} vectors")
