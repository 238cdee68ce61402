/**
 * An entry in the header of a payload. A payload contains named arrays and a description in the safetensors format: the
 * length of the header in eight bytes, the header as JSON, and the arrays. `views/payload.py` and `packPayload` write
 * payloads.
 *
 * @typedef {{dtype: string, shape: number[], data_offsets: [number, number]}} Entry
 */

/** @type {Record<string, string>} */
const DTYPES = { Float32Array: "F32", Float64Array: "F64", Uint8Array: "U8", Uint16Array: "U16" };

/** @template Description the type of the description */
export class Payload {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.bytes = bytes;
    this.start = 8 + Number(view.getBigUint64(0, true));
    const decoder = new TextDecoder();
    /** @type {Record<string, Entry>} */
    this.entries = JSON.parse(decoder.decode(bytes.subarray(8, this.start)));
    /** @type {Description} */
    this.description = JSON.parse(decoder.decode(this.numbers("view", Uint8Array)));
  }

  /** @param {string} name */
  has(name) {
    return Object.hasOwn(this.entries, name);
  }

  /** @param {string} name */
  shape(name) {
    return this.entries[name].shape;
  }

  /**
   * Returns the elements of an array in row-major order, without a copy if the bytes are aligned.
   *
   * @template {Float32ArrayConstructor | Float64ArrayConstructor | Uint8ArrayConstructor | Uint16ArrayConstructor} K
   * @param {string} name
   * @param {K} Numbers the expected type
   * @returns {InstanceType<K>}
   */
  numbers(name, Numbers) {
    const { dtype, data_offsets: ends } = this.entries[name];
    if (dtype !== DTYPES[Numbers.name])
      throw new TypeError(`${name} is ${dtype}, not ${DTYPES[Numbers.name]}.`);
    let part = this.bytes.subarray(this.start + ends[0], this.start + ends[1]);
    if (part.byteOffset % Numbers.BYTES_PER_ELEMENT) part = part.slice();
    const length = part.byteLength / Numbers.BYTES_PER_ELEMENT;
    const buffer = /** @type {ArrayBuffer} */ (part.buffer);
    return /** @type {InstanceType<K>} */ (new Numbers(buffer, part.byteOffset, length));
  }
}

/**
 * Packs a description and named arrays into a payload, as `views/payload.py` does.
 *
 * @param {object} description
 * @param {Record<string, Float32Array | Float64Array | Uint8Array | Uint16Array>} arrays
 * @param {Record<string, number[]>} shapes of the arrays with more than one dimension
 */
export function packPayload(description, arrays, shapes = {}) {
  const view = new TextEncoder().encode(JSON.stringify(description));
  const parts = Object.entries({ ...arrays, view }).sort(
    ([, one], [, other]) => other.BYTES_PER_ELEMENT - one.BYTES_PER_ELEMENT,
  );
  /** @type {Record<string, unknown>} */
  const header = {};
  let end = 0;
  for (const [name, array] of parts) {
    const data_offsets = [end, end + array.byteLength];
    header[name] = {
      dtype: DTYPES[array.constructor.name],
      shape: shapes[name] ?? [array.length],
      data_offsets,
    };
    end += array.byteLength;
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const start = 8 + Math.ceil(text.length / 8) * 8;
  const bytes = new Uint8Array(start + end).fill(0x20);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(start - 8), true);
  bytes.set(text, 8);
  let offset = start;
  for (const [, array] of parts) {
    bytes.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), offset);
    offset += array.byteLength;
  }
  return bytes;
}
