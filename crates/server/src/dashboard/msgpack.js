// Decodes MessagePack. Integers beyond 2^53 become BigInt, binary data Uint8Array, maps Map: nothing is rounded or lost.

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  skip(size) {
    const begin = this.at;
    if (begin + size > this.bytes.length) throw new RangeError("the payload is incomplete");
    this.at += size;
    return begin;
  }

  uint(size) {
    const begin = this.skip(size);
    if (size === 8) return this.view.getBigUint64(begin);
    return size === 1 ? this.view.getUint8(begin) : size === 2 ? this.view.getUint16(begin) : this.view.getUint32(begin);
  }

  int(size) {
    const begin = this.skip(size);
    if (size === 8) return this.view.getBigInt64(begin);
    return size === 1 ? this.view.getInt8(begin) : size === 2 ? this.view.getInt16(begin) : this.view.getInt32(begin);
  }

  binary(size) {
    const begin = this.skip(size);
    return this.bytes.subarray(begin, begin + size);
  }

  // A text that is not UTF-8 stays binary.
  text(size) {
    const bytes = this.binary(size);
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    } catch {
      return bytes;
    }
  }

  list(size, depth) {
    const items = [];
    for (let i = 0; i < size; i += 1) items.push(this.value(depth + 1));
    return items;
  }

  map(size, depth) {
    const entries = new Map();
    for (let i = 0; i < size; i += 1) entries.set(this.value(depth + 1), this.value(depth + 1));
    return entries;
  }

  extension(size) {
    const kind = this.int(1);
    return { kind, bytes: this.binary(size) };
  }

  value(depth = 0) {
    if (depth > 200) throw new RangeError("the payload is nested too deeply");
    const code = this.uint(1);
    if (code < 0x80) return code;
    if (code < 0x90) return this.map(code & 15, depth);
    if (code < 0xa0) return this.list(code & 15, depth);
    if (code < 0xc0) return this.text(code & 31);
    if (code >= 0xe0) return code - 256;
    const size = 1 << (code & 3);
    if (code === 0xc0) return null;
    if (code === 0xc2 || code === 0xc3) return code === 0xc3;
    if (code >= 0xc4 && code <= 0xc6) return this.binary(this.uint(1 << (code - 0xc4)));
    if (code >= 0xc7 && code <= 0xc9) return this.extension(this.uint(1 << (code - 0xc7)));
    if (code === 0xca) return new Float(this.view.getFloat32(this.skip(4)));
    if (code === 0xcb) return new Float(this.view.getFloat64(this.skip(8)));
    if (code >= 0xcc && code <= 0xcf) return small(this.uint(size));
    if (code >= 0xd0 && code <= 0xd3) return small(this.int(size));
    if (code >= 0xd4 && code <= 0xd8) return this.extension(1 << (code - 0xd4));
    if (code >= 0xd9 && code <= 0xdb) return this.text(this.uint(1 << (code - 0xd9)));
    if (code === 0xdc || code === 0xdd) return this.list(this.uint(code === 0xdc ? 2 : 4), depth);
    if (code === 0xde || code === 0xdf) return this.map(this.uint(code === 0xde ? 2 : 4), depth);
    throw new RangeError("the payload is not MessagePack");
  }
}

// A number with a fraction or an exponent, which is written with a point.
export class Float {
  constructor(number) {
    this.number = number;
  }
}

const small = (value) =>
  typeof value === "bigint" && value <= Number.MAX_SAFE_INTEGER && value >= Number.MIN_SAFE_INTEGER ? Number(value) : value;

export function decode(bytes) {
  const reader = new Reader(bytes);
  const value = reader.value();
  if (reader.at !== bytes.length) throw new RangeError("the payload is not MessagePack");
  return value;
}
