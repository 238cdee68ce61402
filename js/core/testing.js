// Helpers for tests: payloads as Python packs them, a font without a browser, and a canvas that records its shapes.

/** @typedef {import("./pen.js").DrawingContext} DrawingContext */

/** @type {Record<string, string>} */
const DTYPES = { Float32Array: "F32", Float64Array: "F64", Uint8Array: "U8", Uint16Array: "U16" };

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

/**
 * Measures texts in a font whose letters are half as wide as high.
 *
 * @type {import("./text.js").Measure}
 */
export const measure = (text, size) => Array.from(text).length * size * 0.5;

/** @type {import("./theme.js").Theme} */
export const theme = {
  isDark: false,
  background: "white",
  ink: "black",
  muted: "gray",
  line: "silver",
  accent: "blue",
  font: "sans-serif",
  missing: ["snow", "silver"],
};

/** Colors that are named after their index. @type {import("./scale.js").Colors} */
export const colors = {
  css: Array.from({ length: 256 }, (_, entry) => `entry-${entry}`),
  rgba: Uint32Array.from({ length: 256 }, (_, entry) => entry),
  inks: Array.from({ length: 256 }, () => "ink"),
};

/**
 * A 2-D context that records its shapes, each as its name and its numbers or text.
 *
 * @implements {DrawingContext}
 */
export class RecordingContext {
  constructor() {
    /** @type {string[]} */
    this.shapes = [];
    /** @type {string[]} */
    this.trace = [];
    this.fillStyle = "";
    this.strokeStyle = "";
    this.font = "";
    this.globalAlpha = 1;
    this.imageSmoothingEnabled = true;
    this.lineWidth = 1;
    /** @type {CanvasTextAlign} */
    this.textAlign = "left";
    /** @type {CanvasTextBaseline} */
    this.textBaseline = "alphabetic";
  }

  /** @param {string} text */
  fillText(text) {
    this.shapes.push(`text ${text} ${this.fillStyle}`);
  }

  /** @param {...number} numbers */
  fillRect(...numbers) {
    this.shapes.push(`rect ${numbers.join(" ")} ${this.fillStyle}`);
  }

  /** @param {...number} numbers */
  strokeRect(...numbers) {
    this.shapes.push(`rect ${numbers.join(" ")} ${this.strokeStyle}`);
  }

  /** @param {...number} numbers */
  roundRect(...numbers) {
    this.trace.push(numbers.slice(0, 4).join(" "));
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

  /** @returns {DOMMatrix} */
  getTransform() {
    throw new Error("Images are not recorded.");
  }

  arc() {}
  drawImage() {}
  resetTransform() {}
  save() {}
  restore() {}
  clip() {}
  rect() {}
  translate() {}
  rotate() {}
}
