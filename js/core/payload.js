/**
 * What Python sends: named arrays and a description of them in one piece of bytes, laid out as safetensors is:
 * the header's length in eight bytes, the header as JSON, then the arrays from a multiple of eight on.
 * `views/payload.py` writes it.
 *
 * @typedef {{dtype: string, shape: number[], data_offsets: [number, number]}} Entry
 */

/** @type {Record<string, string>} */
const DTYPES = { Float32Array: "F32", Float64Array: "F64", Uint8Array: "U8", Uint16Array: "U16" };

export class Payload {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.bytes = bytes;
    this.start = 8 + Number(view.getBigUint64(0, true));
    const decoder = new TextDecoder();
    /** @type {Record<string, Entry>} */
    this.entries = JSON.parse(decoder.decode(bytes.subarray(8, this.start)));
    /** Whatever is no array. @type {any} */
    this.described = JSON.parse(decoder.decode(this.numbers("view", Uint8Array)));
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
   * The numbers of an array, row by row; without a copy where the bytes lie as the browser needs them.
   *
   * @template {Float32ArrayConstructor | Float64ArrayConstructor | Uint8ArrayConstructor | Uint16ArrayConstructor} K
   * @param {string} name
   * @param {K} Numbers the kind of array that it must be
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
