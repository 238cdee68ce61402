// Functions on colors, which are arrays of red, green and blue from 0 to 255.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };

/** @typedef {ArrayLike<number>} Channels red, green and blue */

/** @type {CanvasRenderingContext2D | null} */
let probe = null;

/**
 * Returns red, green and blue of any CSS color. The browser parses colors that are neither #rrggbb nor rgb(…).
 *
 * @param {string} color
 * @returns {Channels}
 */
export function parseColor(color) {
  const numbers = /^rgb\((\d+), (\d+), (\d+)\)$/.exec(color)?.slice(1).map(Number);
  if (numbers) return numbers;
  if (/^#[\da-f]{6}$/i.test(color)) return [1, 3, 5].map((i) => Number.parseInt(color.slice(i, i + 2), 16));
  if (!probe) {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    probe = canvas.getContext("2d", { willReadFrequently: true });
  }
  if (!probe) throw new Error("This browser does not support the 2-D canvas.");
  probe.fillStyle = color;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data.slice(0, 3);
}

/**
 * Returns the relative luminance as defined by WCAG, 0 to 1.
 *
 * @param {Channels} color
 */
export function luminance(color) {
  const [red, green, blue] = [0, 1, 2].map((i) => {
    const share = color[i] / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/**
 * Returns the contrast ratio of two luminances, 1 to 21.
 *
 * @param {number} first
 * @param {number} second
 */
export function contrast(first, second) {
  return (Math.max(first, second) + 0.05) / (Math.min(first, second) + 0.05);
}

/**
 * Returns the first color mixed with `share` of the second.
 *
 * @param {Channels} first
 * @param {Channels} second
 * @param {number} share
 */
export function mixColors(first, second, share) {
  return formatColor([0, 1, 2].map((i) => Math.round(first[i] * (1 - share) + second[i] * share)));
}

/** @param {Channels} color */
export function formatColor(color) {
  return `rgb(${color[0]}, ${color[1]}, ${color[2]})`;
}

/**
 * Packs an opaque color into a 32-bit word for the pixels of an ImageData. All platforms with browsers are
 * little-endian, so alpha is the highest byte.
 *
 * @param {Channels} color
 */
export function packColor(color) {
  return ((255 << 24) | (color[2] << 16) | (color[1] << 8) | color[0]) >>> 0;
}

/**
 * Returns the color of a head, which is the same on every page.
 *
 * @param {number} head from 0
 */
export function getHeadColor(head) {
  return constants.heads[head % constants.heads.length];
}
