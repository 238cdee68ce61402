// What the JavaScript engine within Python lacks of what a payload is read with.

/** UTF-8 as text. */
class Decoder {
  /** @param {Uint8Array} bytes */
  decode(bytes) {
    let escaped = "";
    for (const byte of bytes)
      escaped +=
        byte < 128 && byte !== 37 ? String.fromCharCode(byte) : `%${byte.toString(16).padStart(2, "0")}`;
    return decodeURIComponent(escaped);
  }
}

export const TextDecoder = globalThis.TextDecoder ?? Decoder;
