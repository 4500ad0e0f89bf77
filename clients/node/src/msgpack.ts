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
  const writer = new Writer();
  writer.value(value, 0);
  return writer.written();
}

class Writer {
  private bytes = Buffer.allocUnsafe(256);
  private at = 0;

  written(): Buffer {
    return Buffer.from(this.bytes.subarray(0, this.at));
  }

  value(value: unknown, depth: number): void {
    if (depth > NESTING_MAX) throw new RangeError(`the value is nested more than ${NESTING_MAX} levels deep`);
    switch (typeof value) {
      case "boolean":
        return this.byte(value ? 0xc3 : 0xc2);
      case "bigint":
        return this.integer(value);
      case "number":
        return this.number(value);
      case "string":
        return this.string(value);
      case "object":
        return value === null ? this.byte(0xc0) : this.object(value, depth);
      default:
        return this.byte(0xc0);
    }
  }

  private number(value: number): void {
    if (Number.isInteger(value) && value >= -32 && value < 128 && !Object.is(value, -0)) return this.byte(value & 0xff);
    if (Number.isSafeInteger(value) && value !== 0) return this.integer(BigInt(value));
    this.byte(0xcb);
    this.at = this.room(8).writeDoubleBE(value, this.at);
  }

  /** An integer in the fewest bytes. */
  private integer(value: bigint): void {
    if (value >= -32n && value < 128n) return this.byte(Number(value) & 0xff);
    const marker = value >= 0n ? 0xcc : 0xd0;
    for (const [step, size] of [[0, 1], [1, 2], [2, 4]] as const) {
      const bits = BigInt(8 * size);
      if (value >= 0n ? value < 1n << bits : value >= -(1n << (bits - 1n))) {
        this.byte(marker + step);
        const bytes = this.room(size);
        this.at = value >= 0n ? bytes.writeUIntBE(Number(value), this.at, size) : bytes.writeIntBE(Number(value), this.at, size);
        return;
      }
    }
    if (value >= 1n << 64n || value < -(1n << 63n)) throw new RangeError(`${value} does not fit in 64 bits`);
    this.byte(marker + 3);
    const bytes = this.room(8);
    this.at = value >= 0n ? bytes.writeBigUInt64BE(value, this.at) : bytes.writeBigInt64BE(value, this.at);
  }

  private object(value: object, depth: number): void {
    if (value instanceof Uint8Array) {
      this.header(value.length, [0xc4, 0xc5, 0xc6]);
      this.append(value);
    } else if (value instanceof Extension) {
      this.header(value.data.length, [0xc7, 0xc8, 0xc9]);
      this.byte(value.type & 0xff);
      this.append(value.data);
    } else if (Array.isArray(value)) {
      this.length(value.length, 0x90, [0xdc, 0xdd]);
      for (const item of value) this.value(item, depth + 1);
    } else if (value instanceof Map) {
      this.entries([...value], depth);
    } else if ("toJSON" in value && typeof value.toJSON === "function") {
      this.value(value.toJSON(), depth);
    } else {
      this.entries(Object.entries(value).filter(([, field]) => field !== undefined), depth);
    }
  }

  private entries(entries: Array<[unknown, unknown]>, depth: number): void {
    this.length(entries.length, 0x80, [0xde, 0xdf]);
    for (const [key, field] of entries) {
      this.value(key, depth + 1);
      this.value(field, depth + 1);
    }
  }

  private string(value: string): void {
    const bytes = Buffer.from(value);
    if (bytes.length < 32) this.byte(0xa0 | bytes.length);
    else this.header(bytes.length, [0xd9, 0xda, 0xdb]);
    this.append(bytes);
  }

  /** The length of a list or map. */
  private length(length: number, short: number, [medium, long]: [number, number]): void {
    if (length < 16) this.byte(short | length);
    else this.header(length, [undefined, medium, long]);
  }

  /** A marker and a length of 8, 16 or 32 bits. */
  private header(length: number, [short, medium, long]: [number | undefined, number, number]): void {
    if (short !== undefined && length < 0x100) {
      this.byte(short);
      this.byte(length);
    } else if (length < 0x10000) {
      this.byte(medium);
      this.at = this.room(2).writeUInt16BE(length, this.at);
    } else {
      this.byte(long);
      this.at = this.room(4).writeUInt32BE(length, this.at);
    }
  }

  private byte(value: number): void {
    this.room(1)[this.at++] = value;
  }

  private append(bytes: Uint8Array): void {
    this.room(bytes.length).set(bytes, this.at);
    this.at += bytes.length;
  }

  /** The buffer with room for so many bytes more. */
  private room(size: number): Buffer {
    if (this.at + size > this.bytes.length) {
      const larger = Buffer.allocUnsafe(Math.max(2 * this.bytes.length, this.at + size));
      this.bytes.copy(larger, 0, 0, this.at);
      this.bytes = larger;
    }
    return this.bytes;
  }
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
    if (size > this.left) throw new RangeError("the value is shorter than announced");
    this.at += size;
    return this.bytes.readUIntBE(this.at - size, size);
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
