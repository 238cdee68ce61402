// The head view's elements and sentences.

import { button, element, group, keyboardHelp, liveRegion } from "../core/dom.js";
import { scrolledParts } from "../core/scrolled_view.js";
import { counted, formatted, plainNumber } from "../core/text.js";
import { MOST_LINES, STEPS } from "./lines.js";
import { layerName, MEAN, unitName } from "./model.js";
import { headColour } from "./paint.js";

/**
 * @typedef {import("./model.js").Head} Head
 * @typedef {import("./model.js").HeadModel} HeadModel
 * @typedef {import("./model.js").Side} Side
 */

/**
 * Weights between the units looked at and those of the other side.
 *
 * @typedef {object} Weights
 * @property {Side} side
 * @property {number[]} units
 * @property {number[]} targets
 * @property {Float64Array[]} parts one for each of the heads drawn
 * @property {Float64Array} mean of those
 */

const HELP =
  "Arrow keys move between tokens and sides. Enter pins a token, Escape lets go. " +
  "Square brackets go to another layer, comma and full stop to another head.";

/** @param {HTMLElement} root */
export function headParts(root) {
  const threshold = element("input", { type: "range", min: "-1", max: String(STEPS.length - 1), step: "1" });
  threshold.setAttribute("aria-label", "Lines drawn from");
  const parts = {
    layer: element("div", { class: "layer", role: "spinbutton", tabindex: "0", "aria-label": "Layer" }),
    down: button("Layer before", "‹"),
    up: button("Next layer", "›"),
    chips: element("div", {
      class: "chips",
      role: "group",
      "aria-label": "Heads: click for one, shift-click for several",
    }),
    note: element("p", { class: "note" }),
    layouts: segmented("Layout", { columns: "Columns", reading: "Reading" }),
    directions: segmented("Attention between the texts", {
      all: "Any",
      AA: "A→A",
      AB: "A→B",
      BA: "B→A",
      BB: "B→B",
    }),
    specials: button("Show [CLS], [SEP] and the like", "Special tokens"),
    fit: button("Show the whole text at once", "Fit"),
    threshold,
    thresholdText: element("span", { class: "threshold-text" }),
    png: button("Save the picture as PNG", "PNG"),
    svg: button("Save the picture as SVG", "SVG"),
    readout: element("p", { class: "readout" }),
    second: element("p", { class: "second" }),
    share: element("p", { class: "share" }),
    details: element("details"),
    table: element("table"),
    live: liveRegion(),
    ...scrolledParts(),
  };
  const stepper = element("div", { class: "group stepper" }, parts.down, parts.layer, parts.up);
  const shown = group("What is shown", parts.specials, parts.fit);
  const slider = element("label", { class: "threshold" }, parts.thresholdText, threshold);
  const save = group("Save", parts.png, parts.svg);
  const table = element("div", { class: "table" }, parts.table);
  parts.details.append(element("summary", {}, "These weights as a table"), table);
  root.replaceChildren(
    element("div", { class: "bar" }, stepper, parts.chips),
    parts.note,
    element("div", { class: "bar tools" }, parts.layouts, parts.directions, shown, slider, save),
    element("div", { class: "lines" }, parts.readout, parts.second),
    parts.scroll,
    parts.share,
    parts.details,
    parts.live,
    keyboardHelp(HELP),
  );
  return parts;
}

/** @typedef {ReturnType<typeof headParts>} HeadParts */

/**
 * Buttons of which one is pressed; `data-value` says which.
 *
 * @param {string} label
 * @param {Record<string, string>} options
 */
function segmented(label, options) {
  const buttons = Object.entries(options).map(([value, text]) =>
    element("button", { type: "button", "data-value": value }, text),
  );
  return group(label, ...buttons);
}

/**
 * The value of the button that an event came from.
 *
 * @param {Event} event
 * @returns {string | undefined}
 */
export function chosenValue(event) {
  return event.target instanceof HTMLElement ? event.target.dataset.value : undefined;
}

/** @param {HTMLElement} element @param {boolean} pressed */
export function press(element, pressed) {
  element.setAttribute("aria-pressed", String(pressed));
}

/** @param {HTMLElement} buttons @param {string} value */
export function pressOne(buttons, value) {
  for (const button of chipsOf(buttons)) press(button, button.dataset.value === value);
}

/** @param {HTMLElement} parent */
export function chipsOf(parent) {
  return /** @type {HTMLElement[]} */ ([...parent.children]);
}

/**
 * A chip a head, in its colour, and one for the mean.
 *
 * @param {HeadModel} model
 */
export function headChips(model) {
  if (model.rolled) return [];
  const mean = chip("mean", MEAN, "Mean over all heads");
  mean.append("Mean");
  const heads = model.heads.map((head, i) => {
    const label = model.headLabels[i];
    const title = `Head ${head + 1}${label ? `: ${label}` : ""} (shift-click: add or remove)`;
    const one = chip(label ? "labelled" : "", String(i), title);
    one.setAttribute("aria-label", title);
    one.style.setProperty("--head", headColour(head));
    one.append(element("span", { class: "dot" }), String(head + 1));
    return one;
  });
  const all = chip("all", "all", "All heads at once");
  all.setAttribute("aria-label", "All heads");
  all.append("All");
  return [mean, ...heads, all];
}

/** @param {string} kind @param {string} head @param {string} title */
function chip(kind, head, title) {
  return element("button", { type: "button", class: `chip ${kind}`.trim(), "data-head": head, title });
}

/**
 * "ground (11) looks at: left (9) 0.6486 · we (7) 0.1200 · 12 others 0.2314"
 *
 * @param {HeadModel} model
 * @param {Weights} weights
 */
export function rowNodes(model, { side, units, targets, parts, mean }) {
  const several = units.length > 1;
  const said = [several ? "added up" : "", parts.length > 1 ? "mean over the heads shown" : ""].filter(
    Boolean,
  );
  const who = units.length > 3 ? `${units.length} tokens` : unitNames(model, units);
  const looks = several ? "look at" : "looks at";
  const verb = side === "query" ? looks : `${several ? "are" : "is"} looked at by`;
  const best = [...targets].sort((one, other) => mean[other] - mean[one]).slice(0, 4);
  /** @type {[string, number][]} */
  const named = best.map((unit) => [unitName(model, unit), mean[unit]]);
  const others = model.units.length - best.length;
  if (others > 0) {
    const all = mean.reduce((sum, weight) => sum + weight, 0);
    const rest = all - named.reduce((sum, [, weight]) => sum + weight, 0);
    named.push([others === 1 ? "1 other" : `${others} others`, rest]);
  }
  return [
    element("b", {}, element("bdi", {}, who)),
    ` ${verb} `,
    ...named.flatMap(([name, weight], i) => [
      i ? " · " : "",
      element("bdi", {}, name),
      element("span", { class: "value" }, ` ${formatted(weight, 4)}`),
    ]),
    said.length ? element("span", { class: "quiet" }, `  (${said.join(", ")})`) : "",
  ];
}

/** @param {HeadModel} model @param {number[]} units */
function unitNames(model, units) {
  return units.map((unit) => unitName(model, unit)).join(" + ");
}

/**
 * @param {HeadModel} model
 * @param {Head[]} series
 * @param {Weights} weights
 */
export function weightsTable(model, series, { side, units, targets, parts, mean }) {
  const names = series.map((head) => (head === MEAN ? "Mean" : `Head ${model.heads[head] + 1}`));
  const columns = series.length > 1 ? [...parts, mean] : parts;
  if (series.length > 1) names.push("Mean of these");
  const from = side === "query" ? "from" : "to";
  const caption = `${model.valueName}, layer ${layerName(model, model.layer)}: ${from} ${unitNames(model, units)}`;
  const heads = [side === "query" ? "Key" : "Query", ...names];
  const rows = targets.map((unit) => {
    const name = element("th", { scope: "row" }, element("bdi", {}, unitName(model, unit)));
    return element("tr", {}, name, ...columns.map((part) => element("td", {}, formatted(part[unit], 4))));
  });
  const titles = heads.map((text) => element("th", { scope: "col" }, text));
  return [
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...titles)),
    element("tbody", {}, ...rows),
  ];
}

/**
 * What the lines stand for, with the share of attention that they carry.
 *
 * @param {HeadModel} model
 * @param {import("./lines.js").Drawn} drawn
 */
export function shareSentence(model, { lines, share, least, capped, queries }) {
  const digits = share > 0.9995 || share === 0 ? 0 : 1;
  const count = queries.length;
  const whole = count === model.units.length;
  const whose = whole ? `all ${model.total}` : `the ${model.total} of the ${count} tokens in view`;
  const from = least > 0 ? ` of at least ${plainNumber(least, 2)}` : "";
  const said = lines.length === 1 ? "1 line" : `${counted(lines.length)} lines`;
  const most = counted(MOST_LINES);
  const left = capped ? ` More than ${most} cannot be drawn; the weakest are left out.` : "";
  return `${said}${from}, carrying ${formatted(100 * share, digits)} % of ${whose}.${left}`;
}
