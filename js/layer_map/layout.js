// The layout of the map: the panel of each layer, and the transformation from plane to pixels, without drawing.

import { pointsOf } from "./model.js";

/**
 * @typedef {import("./model.js").MapModel} MapModel
 * @typedef {import("./model.js").Spot} Spot
 * @typedef {import("../core/pen.js").Area} Area
 */

/**
 * The transformation from plane to pixels: x · scale + dx; y points upwards.
 *
 * @typedef {{scale: number, dx: number, dy: number}} Lens
 */

/** Magnification and center of the visible part of the plane; null for everything. */
/** @typedef {{times: number, x: number, y: number} | null} Zoom */

/**
 * A panel of the view.
 *
 * @typedef {object} Panel
 * @property {number[]} layers visible layers
 * @property {Area} area the area of the panel
 * @property {Lens} lens
 */

/** @typedef {{width: number, height: number, panels: Panel[]}} MapGeometry */

const MARGIN = 22; // distance between the outermost points and the frame
const SMALL_MARGIN = 8;
const GAP = 12;
export const TITLE = 20; // height of the title of each panel
const LEAST_PANEL = 168;
const MOST_TIMES = 200;

/**
 * @param {MapModel} model
 * @param {{width: number, height: number}} box
 * @param {import("./model.js").Shown} shown
 * @param {Zoom} zoom
 * @returns {MapGeometry}
 */
export function mapLayout(model, { width, height }, { mode, layer }, zoom) {
  const every = Array.from({ length: model.layerCount }, (_, i) => i);
  if (mode === "each") return panelsLayout(model, width, every);
  const area = { x: 0, y: 0, width, height };
  // If all layers share a plane, all of them have the same transformation.
  const extent = extentOf(model, model.joined ? every : [layer]);
  const lens = zoomed(fitted(extent, area, MARGIN), area, zoom);
  return { width, height, panels: [{ layers: mode === "all" ? every : [layer], area, lens }] };
}

/** @param {MapModel} model @param {number} width @param {number[]} every @returns {MapGeometry} */
function panelsLayout(model, width, every) {
  const most = Math.max(Math.floor((width + GAP) / (LEAST_PANEL + GAP)), 2);
  const rows = Math.ceil(every.length / most);
  const columns = Math.ceil(every.length / rows); // rows of equal length if possible
  const side = Math.floor((width - (columns - 1) * GAP) / columns);
  const high = Math.min(side, 260);
  const together = extentOf(model, every);
  const panels = every.map((layer) => {
    const [row, column] = [Math.floor(layer / columns), layer % columns];
    const area = {
      x: column * (side + GAP),
      y: TITLE + row * (high + TITLE + GAP),
      width: side,
      height: high,
    };
    const extent = model.joined ? together : extentOf(model, [layer]);
    return { layers: [layer], area, lens: fitted(extent, area, SMALL_MARGIN) };
  });
  return { width, height: rows * (high + TITLE) + (rows - 1) * GAP, panels };
}

/** @type {WeakMap<MapModel, Map<string, Extent>>} */
const extents = new WeakMap();

/** The extent of the points of some layers, memoized. @param {MapModel} model @param {number[]} layers */
function extentOf(model, layers) {
  const known = extents.get(model) ?? new Map();
  extents.set(model, known);
  const key = layers.join();
  if (!known.has(key)) known.set(key, measured(model, layers));
  return /** @type {Extent} */ (known.get(key));
}

/** @typedef {{left: number, right: number, low: number, high: number}} Extent of points of the plane */

/** @param {MapModel} model @param {number[]} layers @returns {Extent} */
function measured(model, layers) {
  const [most, least] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  const extent = { left: most, right: least, low: most, high: least };
  for (const layer of layers) {
    const at = pointsOf(model, layer);
    for (let i = 0; i < at.length; i += 2) {
      if (at[i] < extent.left) extent.left = at[i];
      if (at[i] > extent.right) extent.right = at[i];
      if (at[i + 1] < extent.low) extent.low = at[i + 1];
      if (at[i + 1] > extent.high) extent.high = at[i + 1];
    }
  }
  return extent;
}

/**
 * Fits an extent into an area with the same scale on both axes, so that distances are preserved.
 *
 * @param {Extent} extent
 * @param {Area} area
 * @param {number} margin
 * @returns {Lens}
 */
function fitted({ left, right, low, high }, { x, y, width, height }, margin) {
  const [wide, tall] = [right - left, high - low];
  const scale = Math.min((width - 2 * margin) / (wide || 1e-9), (height - 2 * margin) / (tall || 1e-9));
  const kept = wide || tall ? scale : 1;
  return {
    scale: kept,
    dx: x + width / 2 - (kept * (left + right)) / 2,
    dy: y + height / 2 + (kept * (low + high)) / 2,
  };
}

/** @param {Lens} lens @param {Area} area @param {Zoom} zoom @returns {Lens} */
function zoomed(lens, { x, y, width, height }, zoom) {
  if (!zoom) return lens;
  const scale = lens.scale * zoom.times;
  return { scale, dx: x + width / 2 - zoom.x * scale, dy: y + height / 2 + zoom.y * scale };
}

/** @param {Lens} lens @param {number} x @param {number} y @returns {Spot} */
export function toPixels({ scale, dx, dy }, x, y) {
  return { x: x * scale + dx, y: dy - y * scale };
}

/** @param {Lens} lens @param {Spot} spot @returns {Spot} */
export function toPlane({ scale, dx, dy }, { x, y }) {
  return { x: (x - dx) / scale, y: (dy - y) / scale };
}

/**
 * The positions of all marks in pixels.
 *
 * @param {Lens} lens
 * @param {ArrayLike<number>} at
 */
export function inPixels({ scale, dx, dy }, at) {
  const pixels = new Float32Array(at.length);
  for (let i = 0; i < at.length; i += 2) {
    pixels[i] = at[i] * scale + dx;
    pixels[i + 1] = dy - at[i + 1] * scale;
  }
  return pixels;
}

/**
 * The zoom after a step around a fixed spot; null when everything is visible again.
 *
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {number} ratio
 * @param {Spot} about in pixels
 * @returns {Zoom}
 */
export function zoomedBy({ area, lens }, zoom, ratio, about) {
  const now = zoom?.times ?? 1;
  const times = Math.min(now * ratio, MOST_TIMES);
  if (times <= 1.001) return null;
  const fixed = toPlane(lens, about);
  const middle = toPlane(lens, { x: area.x + area.width / 2, y: area.y + area.height / 2 });
  const nearer = now / times;
  return { times, x: fixed.x + (middle.x - fixed.x) * nearer, y: fixed.y + (middle.y - fixed.y) * nearer };
}

/**
 * The zoom to the marks of some layers; null if that is everything.
 *
 * @param {MapModel} model
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {number[]} layers
 * @returns {Zoom}
 */
export function closeUp(model, { area, lens }, zoom, layers) {
  const extent = extentOf(model, layers);
  const times = (fitted(extent, area, MARGIN).scale * (zoom?.times ?? 1)) / lens.scale;
  if (!(times > 1.001)) return null;
  return {
    times: Math.min(times, MOST_TIMES),
    x: (extent.left + extent.right) / 2,
    y: (extent.low + extent.high) / 2,
  };
}

/**
 * The zoom after panning.
 *
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {number} right in pixels
 * @param {number} down
 * @returns {Zoom}
 */
export function pushed({ area, lens }, zoom, right, down) {
  const middle = { x: area.x + area.width / 2 - right, y: area.y + area.height / 2 - down };
  return { times: zoom?.times ?? 1, ...toPlane(lens, middle) };
}

/**
 * The zoom after panning as little as necessary to make a spot visible.
 *
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {Spot} spot of the plane
 * @returns {Zoom}
 */
export function revealing(panel, zoom, spot) {
  if (!zoom) return zoom;
  const { area, lens } = panel;
  const at = toPixels(lens, spot.x, spot.y);
  const right = Math.max(area.x + MARGIN - at.x, 0) + Math.min(area.x + area.width - MARGIN - at.x, 0);
  const down = Math.max(area.y + MARGIN - at.y, 0) + Math.min(area.y + area.height - MARGIN - at.y, 0);
  return right || down ? pushed(panel, zoom, right, down) : zoom;
}

/** The size of marks, smaller for many marks. @param {number} count @param {boolean} small */
export function radiusOf(count, small) {
  const most = small ? 3 : 5;
  return Math.max(Math.min(most, most * (120 / Math.max(count, 1)) ** 0.22), small ? 0.75 : 1.5);
}
