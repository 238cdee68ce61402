// The head view's elements.

import { button, element, group, keyboardHelp, liveRegion } from "../core/dom.js";
import { scrolledParts } from "../core/scrolled_view.js";

const HELP =
  "Arrow keys move between tokens and sides. Enter pins a token, Escape removes all pins. " +
  "Square brackets change the layer, comma and period change the head.";

/** @param {HTMLElement} root @param {HTMLElement} bar the toolbar */
export function headParts(root, bar) {
  const parts = {
    png: button("Save as PNG", "PNG"),
    svg: button("Save as SVG", "SVG"),
    readout: element("p", { class: "readout" }),
    pinnedLine: element("p", { class: "second" }),
    share: element("p", { class: "share" }),
    details: element("details"),
    table: element("table"),
    live: liveRegion(),
    ...scrolledParts(),
  };
  const save = group("Save", parts.png, parts.svg);
  const table = element("div", { class: "table" }, parts.table);
  parts.details.append(element("summary", {}, "These weights as a table"), table);
  root.replaceChildren(
    bar,
    element("div", { class: "line" }, parts.readout, save),
    parts.scroll,
    parts.pinnedLine,
    parts.share,
    parts.details,
    parts.live,
    keyboardHelp(HELP),
  );
  return parts;
}

/** @typedef {ReturnType<typeof headParts>} HeadParts */
