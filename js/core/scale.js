// Color scales: the color of a value, and the texts of the legend.

import { contrast, formatColor, luminance, packColor } from "./color.js";
import { formatShort } from "./text.js";

/**
 * The range of values that the colors represent; see `Scale` in `views/palette.py`.
 *
 * @typedef {{kind: "sequential" | "diverging", low: number, high: number, curve: "linear" | "sqrt"}} Scale
 */

/**
 * The content of a legend: the scale, and whether values are below it, above it or missing.
 *
 * @typedef {{scale: Scale, valueName: string, below: boolean, above: boolean, missing: boolean}} Legend
 */

/**
 * A table of 256 colors in several formats. `inks` contains a text color for each color.
 *
 * @typedef {{css: string[], rgba: Uint32Array, inks: string[]}} Colors
 */

/** Index of 0 in a diverging table. */
export const CENTER = 128;
/** Index of the color for a missing value. */
export const NO_VALUE = -1;

/** @type {[number, number, number][]} */
const INKS = [
  [23, 22, 29],
  [255, 255, 255],
];

/** @param {Scale} scale @returns {(share: number) => number} */
function getCurve(scale) {
  return scale.curve === "sqrt" ? Math.sqrt : (share) => share;
}

/**
 * Returns a function from value to index in the color table, or NO_VALUE.
 *
 * @param {Scale} scale
 * @returns {(value: number) => number}
 */
export function createColorIndexer(scale) {
  const curve = getCurve(scale);
  const { low, high } = scale;
  if (scale.kind === "diverging") {
    return (value) => {
      if (Number.isNaN(value)) return NO_VALUE;
      const share = curve(Math.min(Math.abs(value) / high, 1));
      return value < 0 ? CENTER - Math.round(CENTER * share) : CENTER + Math.round((255 - CENTER) * share);
    };
  }
  return (value) => {
    if (Number.isNaN(value)) return NO_VALUE;
    return Math.round(255 * curve(Math.min(Math.max((value - low) / (high - low), 0), 1)));
  };
}

/**
 * Converts a table of 256 RGB colors, three bytes per color.
 *
 * @param {Uint8Array} table
 * @returns {Colors}
 */
export function readColors(table) {
  const entries = Array.from({ length: 256 }, (_, i) => table.subarray(3 * i, 3 * i + 3));
  return {
    css: entries.map(formatColor),
    rgba: Uint32Array.from(entries, packColor),
    inks: entries.map(chooseInk),
  };
}

/**
 * Returns the text color, near-black or near-white, with the better contrast on a color.
 *
 * @param {Uint8Array} color
 */
function chooseInk(color) {
  const backgroundLuminance = luminance(color);
  const [dark, light] = INKS.map((ink) => contrast(backgroundLuminance, luminance(ink)));
  return formatColor(INKS[dark >= light ? 0 : 1]);
}

/**
 * Returns the position of a value along the legend's bar, 0 to 1.
 *
 * @param {Scale} scale
 * @param {number} value
 */
export function computeBarPosition(scale, value) {
  const curve = getCurve(scale);
  if (scale.kind === "diverging") {
    return 0.5 + (Math.sign(value) * curve(Math.abs(value) / scale.high)) / 2;
  }
  return curve((value - scale.low) / (scale.high - scale.low));
}

/** @param {Scale} scale */
export function computeTicks(scale) {
  if (scale.kind === "diverging") {
    const positive = scale.curve === "sqrt" ? [0.25, 1] : [0.5, 1];
    const upper = positive.map((share) => share * scale.high);
    return [...upper.map((value) => -value).reverse(), 0, ...upper];
  }
  const shares = scale.curve === "sqrt" ? [0, 0.05, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  return shares.map((share) => scale.low + share * (scale.high - scale.low));
}

/**
 * Returns the label of a tick. The labels of the ends contain "≤" or "≥" if there are values beyond the ends.
 *
 * @param {Legend} legend
 * @param {number} value
 */
export function formatTick({ scale, below, above }, value) {
  const text = formatShort(value, 3);
  if (value === scale.low && below) return `≤ ${text}`;
  if (value === scale.high && above) return `≥ ${text}`;
  return text;
}

/** @param {Legend} legend */
export function formatLegend({ scale, valueName }) {
  const suffix = scale.curve === "sqrt" ? ", square-root colors" : "";
  return `${valueName}, fixed scale ${formatShort(scale.low, 6)} to ${formatShort(scale.high, 6)}${suffix}`;
}
