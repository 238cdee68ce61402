// The elements of the map and their texts.

import { button, buttonGroup, element, group, keyboardHelp, liveRegion, stageCanvas } from "../core/dom.js";

const HELP =
  "Left and right arrow keys move between tokens, up and down between layers; Page up and Page down move between texts. " +
  "Enter pins a token and shows its trajectory through the layers, S selects it, Escape clears pin and selection. " +
  "Plus and minus zoom; 0 fits the layer, or shows everything again.";

/** @param {HTMLElement} root */
export function mapParts(root) {
  const parts = {
    modes: buttonGroup("Layers", { layer: "One layer", all: "All layers", each: "Side by side" }),
    layer: element("input", { type: "range", min: "0", step: "1", "aria-label": "Layer" }),
    layerText: element("span", { class: "label" }),
    play: button("Play all layers", "▶"),
    by: element("select", { "aria-label": "Color" }),
    search: element("input", {
      type: "search",
      placeholder: "Find a word",
      "aria-label": "Find a word; Enter selects the matches",
    }),
    lasso: button("Draw a line around marks to select them, or hold Shift", "Lasso"),
    out: button("Zoom out", "−"),
    fit: button("Fit", "Fit"),
    in: button("Zoom in", "+"),
    png: button("Save as PNG", "PNG"),
    svg: button("Save as SVG", "SVG"),
    readout: element("p", { class: "readout" }),
    second: element("p", { class: "second" }),
    base: element("canvas", { class: "base", "aria-hidden": "true" }),
    stage: stageCanvas("marks"),
    legend: element("ul", { class: "legend" }),
    variance: element("p", { class: "variance" }),
    live: liveRegion(),
  };
  const slider = element("div", { class: "slider" }, parts.play, parts.layer, parts.layerText);
  const find = element("div", { class: "find" }, parts.search, group("Select", parts.lasso));
  const tools = element(
    "div",
    { class: "tools" },
    group("Zoom", parts.out, parts.fit, parts.in),
    group("Save", parts.png, parts.svg),
  );
  root.replaceChildren(
    element("div", { class: "bar" }, parts.modes, slider, parts.by, find),
    element("div", { class: "head" }, element("div", { class: "lines" }, parts.readout, parts.second), tools),
    element("div", { class: "canvases" }, parts.base, parts.stage),
    parts.legend,
    parts.variance,
    parts.live,
    keyboardHelp(HELP),
  );
  return { ...parts, slider };
}

/** @typedef {ReturnType<typeof mapParts>} MapParts */

/** @param {string} label @param {string} color */
export function legendEntry(label, color) {
  const swatch = element("span", { class: "swatch" });
  swatch.style.background = color;
  return element("li", {}, swatch, element("bdi", {}, label));
}
