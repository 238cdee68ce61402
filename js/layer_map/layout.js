// Computes the layout of the token map: the panel of each layer, and the transformation from plane to pixels.

import { getPoints } from "./model.js";

/**
 * @typedef {import("./model.js").MapModel} MapModel
 * @typedef {import("./model.js").Spot} Spot
 * @typedef {import("../core/pen.js").Area} Area
 */

/**
 * The transformation from plane to pixels: x · scale + dx; y points upwards.
 *
 * @typedef {{scale: number, dx: number, dy: number}} Transform
 */

/**
 * Magnification and center of the visible area of the plane; null if everything is visible.
 *
 * @typedef {{times: number, x: number, y: number} | null} Zoom
 */

/**
 * A panel of the view.
 *
 * @typedef {object} Panel
 * @property {number[]} layers visible layers
 * @property {Area} area the area of the panel
 * @property {Transform} transform
 */

/** @typedef {{width: number, height: number, panels: Panel[]}} MapGeometry */

const MARGIN = 22; // minimum distance between the points and the frame
const SMALL_MARGIN = 8;
const GAP = 12;
export const TITLE_HEIGHT = 20; // height of the title of each panel
const MIN_PANEL = 168;
const MAX_ZOOM = 200;

/**
 * @param {MapModel} model
 * @param {{width: number, height: number}} box
 * @param {import("./model.js").Display} display
 * @param {Zoom} zoom
 * @returns {MapGeometry}
 */
export function computeMapLayout(model, { width, height }, { mode, layer }, zoom) {
  const allLayers = Array.from({ length: model.layerCount }, (_, i) => i);
  if (mode === "each") return layOutPanels(model, width, allLayers);
  const area = { x: 0, y: 0, width, height };
  // If all layers share a plane, all of them have the same transformation.
  const extent = getExtent(model, model.joined ? allLayers : [layer]);
  const transform = zoomTransform(fitExtent(extent, area, MARGIN), area, zoom);
  return { width, height, panels: [{ layers: mode === "all" ? allLayers : [layer], area, transform }] };
}

/** @param {MapModel} model @param {number} width @param {number[]} allLayers @returns {MapGeometry} */
function layOutPanels(model, width, allLayers) {
  const maxColumns = Math.max(Math.floor((width + GAP) / (MIN_PANEL + GAP)), 2);
  const rows = Math.ceil(allLayers.length / maxColumns);
  const columns = Math.ceil(allLayers.length / rows); // Use rows of equal length if possible.
  const side = Math.floor((width - (columns - 1) * GAP) / columns);
  const panelHeight = Math.min(side, 260);
  const sharedExtent = getExtent(model, allLayers);
  const panels = allLayers.map((layer) => {
    const [row, column] = [Math.floor(layer / columns), layer % columns];
    const area = {
      x: column * (side + GAP),
      y: TITLE_HEIGHT + row * (panelHeight + TITLE_HEIGHT + GAP),
      width: side,
      height: panelHeight,
    };
    const extent = model.joined ? sharedExtent : getExtent(model, [layer]);
    return { layers: [layer], area, transform: fitExtent(extent, area, SMALL_MARGIN) };
  });
  return { width, height: rows * (panelHeight + TITLE_HEIGHT) + (rows - 1) * GAP, panels };
}

/** @type {WeakMap<MapModel, Map<string, Extent>>} */
const extents = new WeakMap();

/** Returns the extent of the points of some layers, memoized. @param {MapModel} model @param {number[]} layers */
function getExtent(model, layers) {
  const cache = extents.get(model) ?? new Map();
  extents.set(model, cache);
  const key = layers.join();
  if (!cache.has(key)) cache.set(key, measureExtent(model, layers));
  return /** @type {Extent} */ (cache.get(key));
}

/** @typedef {{left: number, right: number, low: number, high: number}} Extent of points of the plane */

/** @param {MapModel} model @param {number[]} layers @returns {Extent} */
function measureExtent(model, layers) {
  const [infinity, negativeInfinity] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  const extent = { left: infinity, right: negativeInfinity, low: infinity, high: negativeInfinity };
  for (const layer of layers) {
    const points = getPoints(model, layer);
    for (let i = 0; i < points.length; i += 2) {
      if (points[i] < extent.left) extent.left = points[i];
      if (points[i] > extent.right) extent.right = points[i];
      if (points[i + 1] < extent.low) extent.low = points[i + 1];
      if (points[i + 1] > extent.high) extent.high = points[i + 1];
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
 * @returns {Transform}
 */
function fitExtent({ left, right, low, high }, { x, y, width, height }, margin) {
  const [wide, tall] = [right - left, high - low];
  const scale = Math.min((width - 2 * margin) / (wide || 1e-9), (height - 2 * margin) / (tall || 1e-9));
  const usedScale = wide || tall ? scale : 1;
  return {
    scale: usedScale,
    dx: x + width / 2 - (usedScale * (left + right)) / 2,
    dy: y + height / 2 + (usedScale * (low + high)) / 2,
  };
}

/** @param {Transform} transform @param {Area} area @param {Zoom} zoom @returns {Transform} */
function zoomTransform(transform, { x, y, width, height }, zoom) {
  if (!zoom) return transform;
  const scale = transform.scale * zoom.times;
  return { scale, dx: x + width / 2 - zoom.x * scale, dy: y + height / 2 + zoom.y * scale };
}

/** @param {Transform} transform @param {number} x @param {number} y @returns {Spot} */
export function projectPoint({ scale, dx, dy }, x, y) {
  return { x: x * scale + dx, y: dy - y * scale };
}

/** @param {Transform} transform @param {Spot} spot @returns {Spot} */
export function unprojectPoint({ scale, dx, dy }, { x, y }) {
  return { x: (x - dx) / scale, y: (dy - y) / scale };
}

/**
 * Returns the positions of all marks in pixels.
 *
 * @param {Transform} transform
 * @param {ArrayLike<number>} points
 */
export function projectPoints({ scale, dx, dy }, points) {
  const pixels = new Float32Array(points.length);
  for (let i = 0; i < points.length; i += 2) {
    pixels[i] = points[i] * scale + dx;
    pixels[i + 1] = dy - points[i + 1] * scale;
  }
  return pixels;
}

/**
 * Returns the zoom after a zoom step around a fixed spot, or null if everything is visible.
 *
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {number} ratio
 * @param {Spot} about in pixels
 * @returns {Zoom}
 */
export function zoomAround({ area, transform }, zoom, ratio, about) {
  const factor = zoom?.times ?? 1;
  const times = Math.min(factor * ratio, MAX_ZOOM);
  if (times <= 1.001) return null;
  const fixed = unprojectPoint(transform, about);
  const middle = unprojectPoint(transform, { x: area.x + area.width / 2, y: area.y + area.height / 2 });
  const shrink = factor / times;
  return { times, x: fixed.x + (middle.x - fixed.x) * shrink, y: fixed.y + (middle.y - fixed.y) * shrink };
}

/**
 * Returns the zoom that shows the marks of some layers, or null if no magnification is needed.
 *
 * @param {MapModel} model
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {number[]} layers
 * @returns {Zoom}
 */
export function zoomToLayers(model, { area, transform }, zoom, layers) {
  const extent = getExtent(model, layers);
  const times = (fitExtent(extent, area, MARGIN).scale * (zoom?.times ?? 1)) / transform.scale;
  if (!(times > 1.001)) return null;
  return {
    times: Math.min(times, MAX_ZOOM),
    x: (extent.left + extent.right) / 2,
    y: (extent.low + extent.high) / 2,
  };
}

/**
 * Returns the zoom after panning.
 *
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {number} right in pixels
 * @param {number} down
 * @returns {Zoom}
 */
export function panBy({ area, transform }, zoom, right, down) {
  const middle = { x: area.x + area.width / 2 - right, y: area.y + area.height / 2 - down };
  return { times: zoom?.times ?? 1, ...unprojectPoint(transform, middle) };
}

/**
 * Returns the zoom after the smallest panning that makes a spot visible.
 *
 * @param {Panel} panel
 * @param {Zoom} zoom
 * @param {Spot} spot in the coordinates of the plane
 * @returns {Zoom}
 */
export function panToReveal(panel, zoom, spot) {
  if (!zoom) return zoom;
  const { area, transform } = panel;
  const pixel = projectPoint(transform, spot.x, spot.y);
  const right = Math.max(area.x + MARGIN - pixel.x, 0) + Math.min(area.x + area.width - MARGIN - pixel.x, 0);
  const down = Math.max(area.y + MARGIN - pixel.y, 0) + Math.min(area.y + area.height - MARGIN - pixel.y, 0);
  return right || down ? panBy(panel, zoom, right, down) : zoom;
}

/** Returns the radius of the marks, which decreases with their number. @param {number} count @param {boolean} small */
export function computeRadius(count, small) {
  const maximum = small ? 3 : 5;
  return Math.max(Math.min(maximum, maximum * (120 / Math.max(count, 1)) ** 0.22), small ? 0.75 : 1.5);
}
