// The legend of a color scale, which is next to the picture on a page and below the picture in a file.

import { element, getContext } from "./dom.js";
import { CanvasPen } from "./pen.js";
import { computeBarPosition, computeTicks, formatLegend, formatTick } from "./scale.js";

/**
 * @typedef {import("./scale.js").Colors} Colors
 * @typedef {import("./scale.js").Legend} Legend
 * @typedef {import("./theme.js").Theme} Theme
 * @typedef {import("./pen.js").Pen} Pen
 */

/** Height and width of a legend in a file, in CSS pixels. */
export const LEGEND_HEIGHT = 62;
export const LEGEND_WIDTH = 300;

/** Returns the legend's elements. */
export function legendParts() {
  return {
    bar: element("canvas", { "aria-hidden": "true" }),
    ticks: element("div", { class: "ticks" }),
    legendText: element("p", { class: "legend-text" }),
  };
}

/** @typedef {ReturnType<typeof legendParts>} LegendParts */

/**
 * @param {LegendParts} parts
 * @param {...Node} words text that replaces the default sentence
 */
export function legendElement({ bar, ticks, legendText }, ...words) {
  const scale = element("div", { class: "scale" }, bar, ticks);
  return element("div", { class: "legend" }, ...(words.length ? words : [legendText]), scale);
}

/**
 * Updates the texts of the legend.
 *
 * @param {LegendParts} parts
 * @param {Legend} legend
 */
export function updateLegend(parts, legend) {
  parts.legendText.textContent = formatLegend(legend);
  const ticks = computeTicks(legend.scale).map((value) => {
    const position = computeBarPosition(legend.scale, value);
    const node = element("span", {}, formatTick(legend, value));
    node.style.left = `${position * 100}%`;
    node.className = position === 0 ? "first" : position === 1 ? "last" : "";
    return node;
  });
  parts.ticks.replaceChildren(...ticks);
}

/**
 * @param {LegendParts} parts
 * @param {Theme} theme
 * @param {Colors} colors
 * @param {number} ratio
 */
export function drawLegend({ bar }, theme, colors, ratio) {
  const [width, height] = [bar.clientWidth, bar.clientHeight];
  [bar.width, bar.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  const context = getContext(bar);
  context.scale(ratio, ratio);
  paintBar(new CanvasPen(context, theme.font, ratio), theme, colors, { x: 0, y: 0, width, height });
}

/**
 * Paints the color bar with an equal width for each color. The positions of the ticks follow the curve of the scale.
 *
 * @param {Pen} pen
 * @param {Theme} theme
 * @param {Colors} colors
 * @param {import("./pen.js").Area} area
 */
function paintBar(pen, theme, colors, { x, y, width, height }) {
  pen.paintSeamless(() =>
    colors.css.forEach((fill, entry) => {
      const [start, end] = [entry, entry + 1].map((i) => x + Math.round((i * width) / colors.css.length));
      if (end > start) pen.rectangle(start, y, end - start, height, { fill });
    }),
  );
  pen.rectangle(x - 0.5, y - 0.5, width + 1, height + 1, { stroke: theme.line });
}

/**
 * Draws the legend in a file, with its first line at y.
 *
 * @param {Pen} pen
 * @param {Theme} theme
 * @param {Colors} colors
 * @param {Legend} legend
 * @param {number} x
 * @param {number} y
 */
export function paintLegend(pen, theme, colors, legend, x, y) {
  const text = formatLegend(legend) + (legend.missing ? "; hatched: no value" : "");
  pen.text(text, x, y, { size: 12, fill: theme.muted });
  paintBar(pen, theme, colors, { x, y: y + 8, width: LEGEND_WIDTH, height: 10 });
  for (const tick of computeTicks(legend.scale)) {
    const position = computeBarPosition(legend.scale, tick);
    const anchor = position === 0 ? "start" : position === 1 ? "end" : "middle";
    pen.text(formatTick(legend, tick), x + position * LEGEND_WIDTH, y + 32, {
      size: 11,
      fill: theme.muted,
      anchor,
    });
  }
}
