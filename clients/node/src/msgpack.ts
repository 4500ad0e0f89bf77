// Encodes and decodes MessagePack, the format of stored payloads, for values that JSON cannot represent.

/** The deepest nesting of a payload. */
const NESTING_MAX = 64;

/** A value of an application-defined MessagePack type. */
export class Extension {
  constructor(
    readonly type: number,
    readonly data: Uint8Array,
  ) {}
}

/** Encodes a value: what JSON has, and in addition bytes, BigInt, Map, NaN and infinite numbers. `undefined` is nil. */
export function encode(value: unknown): Buffer {
  const parts: Buffer[] = [];
  write(parts, value, 0);
  return Buffer.concat(parts);
}

function write(parts: Buffer[], value: unknown, depth: number): void {
  if (depth > NESTING_MAX) throw new RangeError(`the value is nested more than ${NESTING_MAX} levels deep`);
  switch (typeof value) {
    case "boolean":
      return void parts.push(Buffer.of(value ? 0xc3 : 0xc2));
    case "bigint":
      return void parts.push(integer(value));
    case "number":
      return void parts.push(Number.isSafeInteger(value) && !Object.is(value, -0) ? integer(BigInt(value)) : double(value));
    case "string":
      return writeString(parts, value);
    case "object":
      return value === null ? void parts.push(NIL) : writeObject(parts, value, depth);
    default:
      parts.push(NIL);
  }
}

const NIL = Buffer.of(0xc0);

function writeObject(parts: Buffer[], value: object, depth: number): void {
  if (value instanceof Uint8Array) {
    parts.push(header(value.length, [0xc4, 0xc5, 0xc6]), Buffer.from(value));
  } else if (value instanceof Extension) {
    parts.push(header(value.data.length, [0xc7, 0xc8, 0xc9]), Buffer.of(value.type & 0xff), Buffer.from(value.data));
  } else if (Array.isArray(value)) {
    parts.push(value.length < 16 ? Buffer.of(0x90 | value.length) : header(value.length, [undefined, 0xdc, 0xdd]));
    for (const item of value) write(parts, item, depth + 1);
  } else if (value instanceof Map) {
    writeEntries(parts, [...value], depth);
  } else if ("toJSON" in value && typeof value.toJSON === "function") {
    write(parts, value.toJSON(), depth);
  } else {
    writeEntries(parts, Object.entries(value).filter(([, field]) => field !== undefined), depth);
  }
}

function writeEntries(parts: Buffer[], entries: Array<[unknown, unknown]>, depth: number): void {
  parts.push(entries.length < 16 ? Buffer.of(0x80 | entries.length) : header(entries.length, [undefined, 0xde, 0xdf]));
  for (const [key, field] of entries) {
    write(parts, key, depth + 1);
    write(parts, field, depth + 1);
  }
}

function writeString(parts: Buffer[], value: string): void {
  const bytes = Buffer.from(value);
  parts.push(bytes.length < 32 ? Buffer.of(0xa0 | bytes.length) : header(bytes.length, [0xd9, 0xda, 0xdb]), bytes);
}

/** A marker and a length of 8, 16 or 32 bits. */
function header(length: number, [short, medium, long]: [number | undefined, number, number]): Buffer {
  if (short !== undefined && length < 0x100) return Buffer.of(short, length);
  if (length < 0x10000) return Buffer.of(medium, length >> 8, length & 0xff);
  const bytes = Buffer.alloc(5, long);
  bytes.writeUInt32BE(length, 1);
  return bytes;
}

function integer(value: bigint): Buffer {
  if (value >= -32n && value < 128n) return Buffer.of(Number(value) & 0xff);
  const bytes = Buffer.alloc(9);
  if (value >= 0n) {
    if (value >= 1n << 64n) throw new RangeError(`${value} does not fit in 64 bits`);
    bytes[0] = 0xcf;
    bytes.writeBigUInt64BE(value, 1);
  } else {
    if (value < -(1n << 63n)) throw new RangeError(`${value} does not fit in 64 bits`);
    bytes[0] = 0xd3;
    bytes.writeBigInt64BE(value, 1);
  }
  return shortest(bytes, value);
}

/** The same integer in the fewest bytes. */
function shortest(bytes: Buffer, value: bigint): Buffer {
  const marker = value >= 0n ? 0xcc : 0xd0;
  for (const [step, size] of [[0, 1], [1, 2], [2, 4]] as const) {
    const bits = BigInt(8 * size);
    const fits = value >= 0n ? value < 1n << bits : value >= -(1n << (bits - 1n));
    if (fits) return Buffer.concat([Buffer.of(marker + step), bytes.subarray(9 - size)]);
  }
  return bytes;
}

function double(value: number): Buffer {
  const bytes = Buffer.alloc(9, 0xcb);
  bytes.writeDoubleBE(value, 1);
  return bytes;
}

/**
 * Decodes one value. Integers beyond 2^53 are BigInt values, maps with a key that is not a string are Map objects, bytes are
 * Buffer objects. Throws a RangeError if the bytes are not one MessagePack value.
 */
export function decode(bytes: Uint8Array): unknown {
  const reader = new Reader(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length));
  const value = reader.value(0);
  if (reader.left > 0) throw new RangeError("bytes after the value");
  return value;
}

class Reader {
  private at = 0;

  constructor(private readonly bytes: Buffer) {}

  get left(): number {
    return this.bytes.length - this.at;
  }

  value(depth: number): unknown {
    if (depth > NESTING_MAX) throw new RangeError(`nested more than ${NESTING_MAX} levels deep`);
    const marker = this.number(1);
    if (marker < 0x80) return marker;
    if (marker < 0x90) return this.map(marker & 0x0f, depth);
    if (marker < 0xa0) return this.list(marker & 0x0f, depth);
    if (marker < 0xc0) return this.string(marker & 0x1f);
    if (marker >= 0xe0) return marker - 0x100;
    return this.marked(marker, depth);
  }

  private marked(marker: number, depth: number): unknown {
    switch (marker) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return marker === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.take(this.number(1 << (marker - 0xc4)));
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return this.extension(this.number(1 << (marker - 0xc7)));
      case 0xca:
        return this.take(4).readFloatBE();
      case 0xcb:
        return this.take(8).readDoubleBE();
      case 0xcf:
        return small(this.take(8).readBigUInt64BE());
      case 0xd3:
        return small(this.take(8).readBigInt64BE());
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.string(this.number(1 << (marker - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.list(this.number(2 << (marker - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.map(this.number(2 << (marker - 0xde)), depth);
      default:
        return this.sized(marker);
    }
  }

  /** Integers of 8 to 32 bits and extensions of a fixed size. */
  private sized(marker: number): unknown {
    if (marker >= 0xcc && marker <= 0xce) return this.number(1 << (marker - 0xcc));
    if (marker >= 0xd0 && marker <= 0xd2) {
      const size = 1 << (marker - 0xd0);
      return this.take(size).readIntBE(0, size);
    }
    if (marker >= 0xd4 && marker <= 0xd8) return this.extension(1 << (marker - 0xd4));
    throw new RangeError(`0x${marker.toString(16)} is not a MessagePack marker`);
  }

  private extension(size: number): Extension {
    const type = this.take(1).readInt8();
    return new Extension(type, this.take(size));
  }

  private string(size: number): string {
    return this.take(size).toString();
  }

  private list(length: number, depth: number): unknown[] {
    if (length > this.left) throw new RangeError("a list is shorter than announced");
    return Array.from({ length }, () => this.value(depth + 1));
  }

  private map(length: number, depth: number): unknown {
    if (2 * length > this.left) throw new RangeError("a map is shorter than announced");
    const entries = Array.from({ length }, () => [this.value(depth + 1), this.value(depth + 1)] as const);
    if (entries.some(([key]) => typeof key !== "string")) return new Map(entries);
    return Object.fromEntries(entries);
  }

  private number(size: number): number {
    return this.take(size).readUIntBE(0, size);
  }

  private take(size: number): Buffer {
    if (size > this.left) throw new RangeError("the value is shorter than announced");
    this.at += size;
    return this.bytes.subarray(this.at - size, this.at);
  }
}

function small(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
