// The elements of the heatmap and their texts.

import { button, element, group, keyboardHelp, liveRegion } from "../core/dom.js";
import { legendElement, legendParts } from "../core/legend.js";
import { scrolledParts } from "../core/scrolled_view.js";
import { formatNumber } from "../core/text.js";
import { getLabel, getValue } from "./model.js";

const HELP =
  "Arrow keys move between cells; Home, End, Page up and Page down go further. Enter pins a cell, Escape removes the pin.";

/** @param {HTMLElement} root */
export function matrixParts(root) {
  const parts = {
    readout: element("p", { class: "readout" }),
    pinnedLine: element("p", { class: "pinned" }),
    out: button("Zoom out", "−"),
    fit: button("Fit: show every cell at once", "Fit"),
    in: button("Zoom in", "+"),
    png: button("Save as PNG", "PNG"),
    svg: button("Save as SVG", "SVG"),
    live: liveRegion(),
    ...scrolledParts(),
    ...legendParts(),
  };
  const zoom = group("Zoom", parts.out, parts.fit, parts.in);
  const tools = element("div", { class: "tools" }, zoom, group("Save", parts.png, parts.svg));
  root.replaceChildren(
    element(
      "div",
      { class: "head" },
      element("div", { class: "lines" }, parts.readout, parts.pinnedLine),
      tools,
    ),
    parts.scroll,
    legendElement(parts),
    parts.live,
    keyboardHelp(HELP),
  );
  return parts;
}

/** @typedef {ReturnType<typeof matrixParts>} MatrixParts */

/**
 * Returns a readout such as "ground (11) → left (9): 0.6486" as nodes, so that CSS can truncate tokens but not the
 * value.
 *
 * @param {import("./model.js").MatrixModel} model
 * @param {import("./model.js").Spot} spot
 */
export function readoutNodes(model, { row, column }) {
  const nodes = [];
  if (row !== null) nodes.push(...nameNodes(getLabel(model, "row", row)));
  if (row !== null && column !== null) nodes.push(element("span", { class: "arrow" }, " → "));
  if (column !== null) nodes.push(...nameNodes(getLabel(model, "column", column)));
  if (row === null || column === null) return nodes;
  const value = formatNumber(getValue(model, row, column), model.decimals);
  return [...nodes, element("span", { class: "value" }, `: ${value}`)];
}

/** @param {{label: string, position: number | null}} named */
function nameNodes({ label, position }) {
  const name = element("span", { class: "name", title: label }, element("bdi", {}, label));
  return position === null ? [name] : [name, element("span", { class: "place" }, ` (${position})`)];
}
