// Many small discs as pixels: with their outlines a canvas would take ten times as long.

import { channels, packedColour } from "./colour.js";

/**
 * Discs of one look, wherever they are.
 *
 * @typedef {object} Discs
 * @property {ArrayLike<number>} at x and y of each, one after the other, in CSS pixels
 * @property {number} radius
 * @property {string} fill
 * @property {number} alpha
 */

const STEPS = 4; // places within a pixel that are told apart, each way

/**
 * Discs on an opaque ground, the first of them beneath.
 *
 * @param {Discs[]} groups
 * @param {import("./pen.js").Area} area that is shown
 * @param {number} ratio pixels in a CSS pixel
 * @param {string} ground
 * @returns {import("./pen.js").Pixels}
 */
export function rasterised(groups, area, ratio, ground) {
  const [width, height] = [Math.round(area.width * ratio), Math.round(area.height * ratio)];
  const words = new Uint32Array(width * height).fill(packedColour(channels(ground)));
  const bytes = new Uint8ClampedArray(words.buffer);
  for (const { at, radius, fill, alpha } of groups) {
    const masks = masksOf(radius * ratio, alpha);
    const [red, green, blue] = Array.from(channels(fill));
    for (let i = 0; i < at.length; i += 2) {
      const [x, y] = [(at[i] - area.x) * ratio, (at[i + 1] - area.y) * ratio];
      const [left, top] = [Math.floor(x), Math.floor(y)];
      if (left < -masks.side || top < -masks.side || left > width + masks.side || top > height + masks.side)
        continue;
      const which = Math.floor((x - left) * STEPS) + STEPS * Math.floor((y - top) * STEPS);
      blend(bytes, width, height, left - masks.before, top - masks.before, masks, which, red, green, blue);
    }
  }
  return { width, height, words };
}

/**
 * How much of each pixel a disc covers, for each place of its middle within a pixel.
 *
 * @param {number} radius in pixels
 * @param {number} alpha
 */
function masksOf(radius, alpha) {
  const before = Math.ceil(radius);
  const side = 2 * before + 1;
  const shares = new Float32Array(STEPS * STEPS * side * side);
  for (let place = 0; place < STEPS * STEPS; place++) {
    const [x, y] = [place % STEPS, Math.floor(place / STEPS)].map((step) => before + (step + 0.5) / STEPS);
    for (let pixel = 0; pixel < side * side; pixel++) {
      const away = Math.hypot((pixel % side) + 0.5 - x, Math.floor(pixel / side) + 0.5 - y);
      shares[place * side * side + pixel] = alpha * Math.min(Math.max(radius + 0.5 - away, 0), 1);
    }
  }
  return { shares, side, before };
}

/**
 * @param {Uint8ClampedArray} bytes
 * @param {number} width @param {number} height
 * @param {number} left @param {number} top
 * @param {ReturnType<typeof masksOf>} masks @param {number} which
 * @param {number} red @param {number} green @param {number} blue
 */
function blend(bytes, width, height, left, top, { shares, side }, which, red, green, blue) {
  let mask = which * side * side;
  for (let y = top; y < top + side; y++) {
    for (let x = left; x < left + side; x++, mask++) {
      const share = shares[mask];
      if (share === 0 || x < 0 || y < 0 || x >= width || y >= height) continue;
      const at = 4 * (y * width + x);
      bytes[at] += (red - bytes[at]) * share;
      bytes[at + 1] += (green - bytes[at + 1]) * share;
      bytes[at + 2] += (blue - bytes[at + 2]) * share;
    }
  }
}
