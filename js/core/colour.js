// Colours as numbers from 0 to 255.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };

/** @typedef {ArrayLike<number>} Channels red, green and blue */

/** @type {CanvasRenderingContext2D | null} */
let probe = null;

/**
 * Any CSS colour as red, green and blue. Where it is no plain number, the browser itself is the parser.
 *
 * @param {string} colour
 * @returns {Channels}
 */
export function channels(colour) {
  const numbers = /^rgb\((\d+), (\d+), (\d+)\)$/.exec(colour)?.slice(1).map(Number);
  if (numbers) return numbers;
  if (/^#[\da-f]{6}$/i.test(colour)) return [1, 3, 5].map((i) => Number.parseInt(colour.slice(i, i + 2), 16));
  if (!probe) {
    const canvas = Object.assign(document.createElement("canvas"), { width: 1, height: 1 });
    probe = canvas.getContext("2d", { willReadFrequently: true });
  }
  if (!probe) throw new Error("This browser draws nothing.");
  probe.fillStyle = colour;
  probe.fillRect(0, 0, 1, 1);
  return probe.getImageData(0, 0, 1, 1).data.slice(0, 3);
}

/**
 * Relative luminance as WCAG defines it, 0 to 1.
 *
 * @param {Channels} colour
 */
export function luminance(colour) {
  const [red, green, blue] = [0, 1, 2].map((i) => {
    const share = colour[i] / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/**
 * Contrast of two luminances, 1 to 21.
 *
 * @param {number} one
 * @param {number} other
 */
export function contrast(one, other) {
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}

/**
 * `share` of the second colour mixed into the first.
 *
 * @param {Channels} first
 * @param {Channels} second
 * @param {number} share
 */
export function mixed(first, second, share) {
  return cssColour([0, 1, 2].map((i) => Math.round(first[i] * (1 - share) + second[i] * share)));
}

/** @param {Channels} colour */
export function cssColour(colour) {
  return `rgb(${colour[0]}, ${colour[1]}, ${colour[2]})`;
}

/**
 * The colour as the 32-bit word of an ImageData; every machine a browser runs on is little-endian.
 *
 * @param {Channels} colour
 */
export function packedColour(colour) {
  return ((255 << 24) | (colour[2] << 16) | (colour[1] << 8) | colour[0]) >>> 0;
}

/**
 * The colour of a head, which it keeps on every page.
 *
 * @param {number} head from 0
 */
export function headColour(head) {
  return constants.heads[head % constants.heads.length];
}
