// The elements of the toolbar.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { getHeadColor } from "../core/color.js";
import { button, buttonGroup, element, group } from "../core/dom.js";
import { MEAN } from "../core/selection.js";

export function toolbarParts() {
  const { steps } = constants;
  const layer = element("div", { class: "layer", role: "spinbutton", tabindex: "0", "aria-label": "Layer" });
  const parts = {
    steps,
    layer,
    down: button("Previous layer", "‹"),
    up: button("Next layer", "›"),
    chips: element("div", { class: "chips", role: "group", "aria-label": "Heads" }),
    words: button(
      "Whole words: attention is summed over the tokens of a key and averaged over those of a query",
      "Words",
    ),
    specials: button("Show special tokens such as [CLS] and [SEP]", "Special tokens"),
    measure: element("select", { "aria-label": "Measure" }),
    more: element("button", { type: "button", class: "more", "aria-haspopup": "true" }, "More"),
    several: button("A click adds or removes a head, like shift-click", "Several"),
    layouts: buttonGroup("Layout", { columns: "Columns", reading: "Reading" }),
    directions: buttonGroup("Attention between the texts", {
      all: "Any",
      AA: "A→A",
      AB: "A→B",
      BA: "B→A",
      BB: "B→B",
    }),
    fit: button("Fit the whole text into the view", "Fit"),
    threshold: slider("Lines drawn from", -1, steps.length - 1),
    thresholdText: element("span", { class: "label" }),
    renormalize: button("Divides each row by its sum", "Normalize rows"),
    colors: button(
      "Color by the square root of the weight, which makes small weights visible",
      "Square-root colors",
    ),
    residual: slider("Residual share", 0, 1),
    residualText: element("span", { class: "label" }),
  };
  parts.more.setAttribute("aria-expanded", "false");
  setPressed(parts.several, false);
  const rows = {
    several: row("Heads", group("Heads", parts.several)),
    layout: row("Layout", parts.layouts),
    direction: row("Between the texts", parts.directions),
    lines: row("", parts.thresholdText, parts.threshold),
    fit: row("Long text", group("Long text", parts.fit)),
    renormalize: row("Rows", group("Rows", parts.renormalize)),
    root: row("Colors", group("Colors", parts.colors)),
    residual: row("", parts.residualText, parts.residual),
  };
  const stepper = element("div", { class: "group stepper" }, parts.down, parts.layer, parts.up);
  const visibility = group("Visible tokens", parts.words, parts.specials);
  const choices = element("div", { class: "choices" }, visibility, parts.measure);
  const popover = element("div", { class: "popover", popover: "auto" }, ...Object.values(rows));
  parts.more.popoverTargetElement = popover;
  const bar = element("div", { class: "bar" }, stepper, parts.chips, choices, parts.more, popover);
  return { ...parts, rows, choices, popover, row: bar, root: bar };
}

/** @typedef {ReturnType<typeof toolbarParts>} BarParts */

/** @param {string} name @param {...(Node | string)} controls */
function row(name, ...controls) {
  return element(
    "div",
    { class: "row" },
    ...(name ? [element("span", { class: "label" }, name)] : []),
    ...controls,
  );
}

/** @param {string} label @param {number} min @param {number} max */
function slider(label, min, max) {
  const range = { type: "range", min: String(min), max: String(max), step: "1" };
  return element("input", { ...range, "aria-label": label });
}

/** @param {HTMLElement} control @param {boolean} isPressed */
export function setPressed(control, isPressed) {
  control.setAttribute("aria-pressed", String(isPressed));
}

/** @param {HTMLElement} buttons @param {string} value */
export function pressValue(buttons, value) {
  for (const option of buttons.children) {
    setPressed(/** @type {HTMLElement} */ (option), option.getAttribute("data-value") === value);
  }
}

/**
 * Marks the selected chips, and puts one chip into the tab order: the first selected chip, or else the first chip.
 *
 * @param {HTMLElement} chips
 * @param {(head: string | undefined) => boolean} isSelected
 */
export function pressChips(chips, isSelected) {
  const all = /** @type {HTMLElement[]} */ ([...chips.children]);
  const selected = all.filter((chip) => isSelected(chip.dataset.head));
  for (const chip of all) {
    setPressed(chip, selected.includes(chip));
    chip.tabIndex = -1;
  }
  const current = selected[0] ?? all[0];
  if (current) current.tabIndex = 0;
}

/**
 * Creates a chip for each head, in the color of the head, and a chip for the mean.
 *
 * @param {import("./bar.js").ToolbarOptions} offer
 * @param {string[]} labels of the layer's heads
 */
export function headChips({ heads, rolled, several }, labels) {
  if (rolled) return [];
  const hint = several ? " (shift-click: add or remove)" : "";
  const mean = chip("mean", MEAN, "Mean over all heads");
  mean.append("Mean");
  const single = Array.from({ length: heads }, (_, head) => {
    const label = labels[head] ?? "";
    const title = `Head ${head + 1}${label ? `: ${label}` : ""}${hint}`;
    const headChip = chip(label ? "labeled" : "", String(head), title);
    headChip.setAttribute("aria-label", title);
    headChip.style.setProperty("--head", getHeadColor(head));
    headChip.append(element("span", { class: "dot" }), String(head + 1));
    return headChip;
  });
  const all = chip("all", "all", "All heads at once");
  all.setAttribute("aria-label", "All heads");
  all.append("All");
  return several ? [mean, ...single, all] : [mean, ...single];
}

/** @param {string} kind @param {string} head @param {string} title */
function chip(kind, head, title) {
  return element("button", { type: "button", class: `chip ${kind}`.trim(), "data-head": head, title });
}
