// Color scales: the color of a number, and the texts of the legend.

import { contrast, cssColor, luminance, packedColor } from "./color.js";
import { plainNumber } from "./text.js";

/**
 * The range of values that the colors stand for; `Scale` in `views/scale.py`.
 *
 * @typedef {{kind: "sequential" | "diverging", low: number, high: number, curve: "linear" | "sqrt"}} Scale
 */

/**
 * The content of a legend: the scale, and whether values are beyond its ends or missing.
 *
 * @typedef {{scale: Scale, valueName: string, below: boolean, above: boolean, missing: boolean}} Legend
 */

/**
 * A table of 256 colors in several formats.
 *
 * @typedef {{css: string[], words: Uint32Array, inks: string[]}} Colors
 */

/** Index of 0 in a diverging table. */
export const CENTRE = 128;
/** Index for a missing value. */
export const NO_VALUE = -1;

/** @type {[number, number, number][]} */
const INKS = [
  [23, 22, 29],
  [255, 255, 255],
];

/** @param {Scale} scale @returns {(share: number) => number} */
function bendOf(scale) {
  return scale.curve === "sqrt" ? Math.sqrt : (share) => share;
}

/**
 * Returns a function from value to index in the color table, or NO_VALUE.
 *
 * @param {Scale} scale
 * @returns {(value: number) => number}
 */
export function colorIndexer(scale) {
  const bend = bendOf(scale);
  const { low, high } = scale;
  if (scale.kind === "diverging") {
    return (value) => {
      if (Number.isNaN(value)) return NO_VALUE;
      const share = bend(Math.min(Math.abs(value) / high, 1));
      return value < 0 ? CENTRE - Math.round(CENTRE * share) : CENTRE + Math.round((255 - CENTRE) * share);
    };
  }
  return (value) => {
    if (Number.isNaN(value)) return NO_VALUE;
    return Math.round(255 * bend(Math.min(Math.max((value - low) / (high - low), 0), 1)));
  };
}

/**
 * Converts a table of 256 × red, green and blue.
 *
 * @param {Uint8Array} table
 * @returns {Colors}
 */
export function colorsOf(table) {
  const entries = Array.from({ length: 256 }, (_, i) => table.subarray(3 * i, 3 * i + 3));
  return {
    css: entries.map(cssColor),
    words: Uint32Array.from(entries, packedColor),
    inks: entries.map(inkOn),
  };
}

/**
 * The text color, near-black or near-white, with the better contrast on a color.
 *
 * @param {Uint8Array} color
 */
function inkOn(color) {
  const ground = luminance(color);
  const [dark, light] = INKS.map((ink) => contrast(ground, luminance(ink)));
  return cssColor(INKS[dark >= light ? 0 : 1]);
}

/**
 * The position of a value along the legend's bar, 0 to 1.
 *
 * @param {Scale} scale
 * @param {number} value
 */
export function placeOnBar(scale, value) {
  const bend = bendOf(scale);
  if (scale.kind === "diverging") {
    return 0.5 + (Math.sign(value) * bend(Math.abs(value) / scale.high)) / 2;
  }
  return bend((value - scale.low) / (scale.high - scale.low));
}

/** @param {Scale} scale */
export function legendTicks(scale) {
  if (scale.kind === "diverging") {
    const positive = scale.curve === "sqrt" ? [0.25, 1] : [0.5, 1];
    const upper = positive.map((share) => share * scale.high);
    return [...upper.map((value) => -value).reverse(), 0, ...upper];
  }
  const shares = scale.curve === "sqrt" ? [0, 0.05, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  return shares.map((share) => scale.low + share * (scale.high - scale.low));
}

/**
 * The label of a tick; the ends have "≤" or "≥" if values are beyond them.
 *
 * @param {Legend} legend
 * @param {number} value
 */
export function tickText({ scale, below, above }, value) {
  const text = plainNumber(value, 3);
  if (value === scale.low && below) return `≤ ${text}`;
  if (value === scale.high && above) return `≥ ${text}`;
  return text;
}

/** @param {Legend} legend */
export function legendSentence({ scale, valueName }) {
  const bent = scale.curve === "sqrt" ? ", square-root colors" : "";
  return `${valueName}, fixed scale ${plainNumber(scale.low, 6)} to ${plainNumber(scale.high, 6)}${bent}`;
}
