// What tests share: a payload as Python packs it, a font without a browser, and a canvas that notes what is drawn.

/** @type {Record<string, string>} */
const DTYPES = { Float32Array: "F32", Float64Array: "F64", Uint8Array: "U8", Uint16Array: "U16" };

/**
 * A payload of a description and named arrays, as `views/payload.py` makes it.
 *
 * @param {object} described
 * @param {Record<string, Float32Array | Float64Array | Uint8Array | Uint16Array>} arrays
 * @param {Record<string, number[]>} shapes of those that are no plain list
 */
export function packed(described, arrays, shapes = {}) {
  const view = new TextEncoder().encode(JSON.stringify(described));
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
  let at = start;
  for (const [, array] of parts) {
    bytes.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at);
    at += array.byteLength;
  }
  return bytes;
}

/**
 * A font whose letters are all half as wide as they are high.
 *
 * @type {import("./text.js").Measure}
 */
export const measure = (text, size) => Array.from(text).length * size * 0.5;

/** @type {import("./theme.js").Theme} */
export const theme = {
  dark: false,
  background: "white",
  ink: "black",
  muted: "gray",
  line: "silver",
  accent: "blue",
  font: "sans-serif",
  missing: ["snow", "silver"],
};

/** Colors that say which entry they are. @type {import("./scale.js").Colors} */
export const colors = {
  css: Array.from({ length: 256 }, (_, entry) => `entry-${entry}`),
  words: Uint32Array.from({ length: 256 }, (_, entry) => entry),
  inks: Array.from({ length: 256 }, () => "ink"),
};

/** A 2d context that notes the shapes drawn on it, each as its name and its numbers or text. */
export class NotingContext {
  constructor() {
    /** @type {string[]} */
    this.shapes = [];
    /** @type {string[]} */
    this.trace = [];
    this.fillStyle = "";
    this.strokeStyle = "";
  }

  /** @param {string} text */
  fillText(text) {
    this.shapes.push(`text ${text} ${this.fillStyle}`);
  }

  /** @param {...number} place */
  fillRect(...place) {
    this.shapes.push(`rect ${place.join(" ")} ${this.fillStyle}`);
  }

  /** @param {...number} place */
  strokeRect(...place) {
    this.shapes.push(`rect ${place.join(" ")} ${this.strokeStyle}`);
  }

  /** @param {...number} place */
  roundRect(...place) {
    this.trace.push(place.slice(0, 4).join(" "));
  }

  fill() {
    this.shapes.push(`rect ${this.trace.join("")} ${this.fillStyle}`);
  }

  beginPath() {
    this.trace = [];
  }

  /** @param {...number} point */
  moveTo(...point) {
    this.trace.push(`M${point.join(" ")}`);
  }

  /** @param {...number} point */
  lineTo(...point) {
    this.trace.push(`L${point.join(" ")}`);
  }

  /** @param {...number} points */
  bezierCurveTo(...points) {
    this.trace.push(`C${points.join(" ")}`);
  }

  stroke() {
    this.shapes.push(`path ${this.trace.join("")} ${this.strokeStyle}`);
  }

  save() {}
  restore() {}
  clip() {}
  rect() {}
  translate() {}
  rotate() {}
}
