// Draws many small discs into a pixel array, which is ten times as fast as drawing paths on a canvas.

import { packColor, parseColor } from "./color.js";

/**
 * Discs that have the same style.
 *
 * @typedef {object} Discs
 * @property {ArrayLike<number>} positions x and y of each disc, interleaved, in CSS pixels
 * @property {number} radius
 * @property {string} fill
 * @property {number} alpha
 */

const SUBPIXELS = 4; // number of subpixel positions per axis to which the center of a disc is rounded

/**
 * Draws discs on an opaque background; later discs cover earlier discs.
 *
 * @param {Discs[]} groups
 * @param {import("./pen.js").Area} area the visible area
 * @param {number} ratio device pixels per CSS pixel
 * @param {string} background
 * @returns {import("./pen.js").Pixels}
 */
export function rasterizeDiscs(groups, area, ratio, background) {
  const pixels = createPixels(area, ratio, background);
  drawDiscs(pixels, groups, area, ratio);
  return pixels;
}

/**
 * Returns the pixels of an area, filled with the background color.
 *
 * @param {import("./pen.js").Area} area
 * @param {number} ratio device pixels per CSS pixel
 * @param {string} background
 * @returns {import("./pen.js").Pixels}
 */
export function createPixels(area, ratio, background) {
  const [width, height] = [Math.round(area.width * ratio), Math.round(area.height * ratio)];
  return { width, height, rgba: new Uint32Array(width * height).fill(packColor(parseColor(background))) };
}

/**
 * Draws discs on the pixels of an area.
 *
 * @param {import("./pen.js").Pixels} target
 * @param {Discs[]} groups
 * @param {import("./pen.js").Area} area
 * @param {number} ratio
 */
export function drawDiscs({ width, height, rgba }, groups, area, ratio) {
  const pixels = new Int32Array(rgba.buffer); // signed, because engines compute fastest with signed 32-bit integers
  for (const { positions, radius, fill, alpha } of groups) {
    const { stamps, before, side } = getStamps(radius * ratio, alpha, width);
    const color = packColor(parseColor(fill)) | 0;
    for (let i = 0; i < positions.length; i += 2) {
      const [x, y] = [(positions[i] - area.x) * ratio, (positions[i + 1] - area.y) * ratio];
      const [left, top] = [Math.floor(x) - before, Math.floor(y) - before];
      if (!(left > -side && top > -side && left < width && top < height)) continue;
      const step = ((x - Math.floor(x)) * SUBPIXELS) | 0;
      const stamp = stamps[step + SUBPIXELS * (((y - Math.floor(y)) * SUBPIXELS) | 0)];
      const isInside = left >= 0 && top >= 0 && left + side <= width && top + side <= height;
      blend(pixels, left + top * width, isInside ? stamp : clipStamp(stamp, left, top, width, height), color);
    }
  }
}

/**
 * The pixels that a disc covers, relative to the upper left corner of its bounding square.
 *
 * @typedef {object} Stamp
 * @property {Int32Array} offsets offsets into the pixel array
 * @property {Int32Array} coverages coverage of each pixel, 0 to `FULL`
 * @property {Int32Array} columns column of each pixel in the bounding square
 */

const FULL = 256;
const MAX_STYLES = 32; // maximum number of styles whose stamps are cached

/** @type {Map<string, ReturnType<typeof createStamps>>} */
const stampCache = new Map();

/** Returns the stamps of a style, memoized. @param {number} radius @param {number} alpha @param {number} width */
function getStamps(radius, alpha, width) {
  const style = `${radius} ${alpha} ${width}`;
  const stamps = stampCache.get(style) ?? createStamps(radius, alpha, width);
  if (stampCache.size >= MAX_STYLES && !stampCache.has(style)) stampCache.clear();
  stampCache.set(style, stamps);
  return stamps;
}

/**
 * Creates the stamps of a disc, one for each subpixel position of its center.
 *
 * @param {number} radius in pixels
 * @param {number} alpha
 * @param {number} width width of the picture, in pixels
 */
function createStamps(radius, alpha, width) {
  const before = Math.ceil(radius);
  const side = 2 * before + 1;
  const stamps = Array.from({ length: SUBPIXELS * SUBPIXELS }, (_, index) => {
    const [x, y] = [index % SUBPIXELS, Math.floor(index / SUBPIXELS)].map(
      (step) => before + (step + 0.5) / SUBPIXELS,
    );
    const covered = [];
    for (let pixel = 0; pixel < side * side; pixel++) {
      const [column, row] = [pixel % side, Math.floor(pixel / side)];
      const distance = Math.hypot(column + 0.5 - x, row + 0.5 - y);
      const share = Math.round(FULL * alpha * Math.min(Math.max(radius + 0.5 - distance, 0), 1));
      if (share) covered.push({ column, index: column + row * width, share });
    }
    /** @type {Stamp} */
    const stamp = {
      offsets: Int32Array.from(covered, ({ index }) => index),
      coverages: Int32Array.from(covered, ({ share }) => share),
      columns: Int32Array.from(covered, ({ column }) => column),
    };
    return stamp;
  });
  return { stamps, before, side };
}

/**
 * Returns a stamp without its pixels outside of the picture.
 *
 * @param {Stamp} stamp
 * @param {number} left @param {number} top upper left corner of the square around the disc, in pixels
 * @param {number} width @param {number} height size of the picture, in pixels
 * @returns {Stamp}
 */
function clipStamp({ offsets, coverages, columns }, left, top, width, height) {
  const isInside = (/** @type {unknown} */ _, /** @type {number} */ i) => {
    const [x, y] = [left + columns[i], top + (offsets[i] - columns[i]) / width];
    return x >= 0 && y >= 0 && x < width && y < height;
  };
  return {
    offsets: offsets.filter(isInside),
    coverages: coverages.filter(isInside),
    columns: columns.filter(isInside),
  };
}

const OUTER = 0xff00ff; // mask of the red and blue channels of a pixel, which are blended together
const HALF = 0x800080; // added before the shift, so that the result is rounded
const OPAQUE = 0xff << 24;

/** @param {Int32Array} pixels @param {number} corner @param {Stamp} stamp @param {number} color */
function blend(pixels, corner, { offsets, coverages }, color) {
  const [outer, green] = [color & OUTER, (color >> 8) & 0xff];
  for (let i = 0; i < offsets.length; i++) {
    const index = corner + offsets[i];
    const share = coverages[i];
    const remainder = FULL - share;
    const pixel = pixels[index];
    const redAndBlue = (Math.imul(pixel & OUTER, remainder) + Math.imul(outer, share) + HALF) | 0;
    const greenPart = (Math.imul((pixel >> 8) & 0xff, remainder) + Math.imul(green, share) + 0x80) | 0;
    pixels[index] = OPAQUE | ((redAndBlue >>> 8) & OUTER) | (greenPart & 0xff00);
  }
}
