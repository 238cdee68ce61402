// The elements of the model view.

import { button, element, group, keyboardHelp, liveRegion, stageCanvas } from "../core/dom.js";
import { legendElement, legendParts } from "../core/legend.js";

/** Size of the enlarged thumbnail in pixels. */
export const PREVIEW_SIDE = 224;

/** @param {HTMLElement} root */
export function gridParts(root) {
  const parts = {
    readout: element("p", { class: "readout" }),
    measure: element("select", { "aria-label": "Sort by" }),
    byHead: button("Sort the heads within each layer", "Heads"),
    byLayer: button("Sort the layers by the mean of their heads", "Layers"),
    png: button("Save as PNG", "PNG"),
    svg: button("Save as SVG", "SVG"),
    stage: stageCanvas("grid"),
    outline: element("div", { class: "outline", "aria-hidden": "true", hidden: "" }),
    blocks: element("p", { class: "legend-text" }),
    labeled: element("p", { class: "legend-text labeled" }, "this head has a label"),
    live: liveRegion(),
    help: keyboardHelp(""),
    preview: buildPreview(),
    ...legendParts(),
  };
  const sort = element("label", { class: "sort" }, element("span", {}, "Sort by"), parts.measure);
  const sorting = group("Sorting", parts.byHead, parts.byLayer);
  const saving = group("Save", parts.png, parts.svg);
  const words = element("div", { class: "words" }, parts.legendText, parts.blocks, parts.labeled);
  root.replaceChildren(
    element(
      "div",
      { class: "head" },
      element("div", { class: "tools sorting" }, sort, sorting),
      parts.readout,
      element("div", { class: "tools" }, saving),
    ),
    element("div", { class: "stage" }, parts.stage, parts.outline),
    legendElement(parts, words),
    parts.live,
    parts.help,
    parts.preview.root,
  );
  return parts;
}

/** @typedef {ReturnType<typeof gridParts>} GridParts */

/** Returns a popover with the enlarged thumbnail. It is in the top layer, so that nothing clips it. */
function buildPreview() {
  const title = element("p", { class: "preview-title" });
  const detail = element("p", { class: "preview-detail" });
  const axes = element("p", { class: "preview-axes" });
  const canvas = element("canvas");
  const attributes = { class: "preview", popover: "manual", "aria-hidden": "true" };
  return { root: element("div", attributes, title, detail, axes, canvas), title, detail, axes, canvas };
}

/**
 * Returns the position of the preview next to an outline, on a side with enough space; null if there is none.
 *
 * @param {DOMRect} outline
 * @param {DOMRect} box
 */
export function computePreviewPosition(outline, box) {
  const [right, left] = [outline.right + 12, outline.left - box.width - 12];
  const x = right + box.width <= window.innerWidth - 8 ? right : left;
  if (x < 8) return null;
  const middle = (outline.top + outline.bottom - box.height) / 2;
  return { x, y: Math.max(8, Math.min(middle, window.innerHeight - box.height - 8)) };
}
