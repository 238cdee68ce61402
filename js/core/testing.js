// Helpers for tests without a browser: text widths, a theme, colors, and a canvas context that records shapes.

/** @typedef {import("./pen.js").DrawingContext} DrawingContext */

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

/** A color table in which each color is named after its index. @type {import("./scale.js").Colors} */
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

  putImageData() {
    this.shapes.push("pixels");
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
