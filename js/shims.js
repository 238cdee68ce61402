// Replacements for browser APIs that the embedded JavaScript engine lacks.

/** A TextDecoder for UTF-8 that uses only `decodeURIComponent`. */
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
