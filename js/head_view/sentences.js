// The texts of the head view: its title, the readout and the table for a token, and the sentences below the view.

import { element } from "../core/dom.js";
import { MEAN } from "../core/selection.js";
import { formatCount, formatNumber, formatShort } from "../core/text.js";
import { MAX_LINES } from "./lines.js";
import { nameLayer, nameSeries, nameUnit } from "./model.js";

/**
 * @typedef {import("../core/selection.js").Head} Head
 * @typedef {import("../core/selection.js").Side} Side
 * @typedef {import("./model.js").HeadModel} HeadModel
 */

/**
 * Weights between the active tokens or words and those on the other side.
 *
 * @typedef {object} Weights
 * @property {Side} side
 * @property {number[]} units
 * @property {number[]} targets
 * @property {Float64Array[]} headWeights weights of each visible head
 * @property {Float64Array} mean mean weights over the visible heads
 */

/**
 * The reason why the app selected a head; layers count from 1, heads from 0.
 *
 * @typedef {{layer: number, head: number, text: string}} Reason
 */

/**
 * Returns the title of a picture.
 *
 * @param {HeadModel} model
 * @param {Head[]} series
 */
export function formatTitle(model, series) {
  const { title, layer, rolled } = model;
  const name = nameLayer(model, layer);
  return rolled ? `${title} layer ${name}` : `${title} in layer ${name}, ${nameSeries(model, series)}`;
}

/**
 * Returns a note on the selected heads, from their labels.
 *
 * @param {HeadModel} model
 * @param {Head[]} series
 * @param {string[]} labels of the layer's heads
 */
function describeHeads(model, series, labels) {
  if (model.rolled) return "computed for a whole layer, not for individual heads";
  if (series[0] === MEAN) return "the mean hides single heads; click a head to see its attention";
  const notes = series
    .map(Number)
    .filter((head) => labels[head])
    .map((head) => (series.length > 1 ? `${model.heads[head] + 1} ${labels[head]}` : labels[head]));
  // Labels are omitted for words, because they are always computed from the attention between tokens.
  const where = model.words ? "by token" : "on this text";
  if (notes.length) return `${where}: ${notes.slice(0, 6).join(" · ")}`;
  return series.length === 1 && labels.length ? "no distinctive pattern on this text" : "";
}

/**
 * Returns the readout when no token is active: the title and a note on the heads.
 *
 * @param {HeadModel} model @param {Head[]} series @param {string[]} labels of the layer's heads
 */
export function createTitle(model, series, labels) {
  const note = describeHeads(model, series, labels);
  const nodes = note ? [element("span", { class: "quiet" }, ` · ${note}`)] : [];
  return [element("b", {}, formatTitle(model, series)), ...nodes];
}

/**
 * Returns a sentence that explains why the app selected a head, with a link that selects the mean.
 *
 * @param {Reason} reason @param {() => void} showMean
 */
export function createReason({ layer, head, text }, showMean) {
  const mean = element("button", { type: "button", class: "link" }, "Show the mean of all heads");
  mean.onclick = showMean;
  return [element("b", {}, `Layer ${layer}, head ${head + 1}`), `: ${text}. `, mean];
}

/**
 * Returns the readout for active tokens or words, such as "ground (11) attends to left (9) 0.6486 · 12 others 0.2314".
 *
 * @param {HeadModel} model
 * @param {Weights} weights
 */
export function createReadout(model, { side, units, targets, headWeights, mean }) {
  const isSum = units.length > 1;
  const remarks = [isSum ? "summed" : "", headWeights.length > 1 ? "mean over the visible heads" : ""].filter(
    Boolean,
  );
  const subject = units.length > 3 ? `${units.length} ${nameUnits(model)}` : joinUnitNames(model, units);
  const attends = isSum ? "attend to" : "attends to";
  const verb = side === "query" ? attends : `${isSum ? "are" : "is"} attended to by`;
  const best = [...targets].sort((a, b) => mean[b] - mean[a]).slice(0, 4);
  /** @type {[string, number][]} */
  const entries = best.map((unit) => [nameUnit(model, unit), mean[unit]]);
  const otherCount = model.units.length - best.length;
  if (otherCount > 0) {
    const all = mean.reduce((sum, weight) => sum + weight, 0);
    const remainder = all - entries.reduce((sum, [, weight]) => sum + weight, 0);
    entries.push([otherCount === 1 ? "1 other" : `${otherCount} others`, remainder]);
  }
  return [
    element("b", {}, element("bdi", {}, subject)),
    ` ${verb} `,
    ...entries.flatMap(([name, weight], i) => [
      i ? " · " : "",
      element("bdi", {}, name),
      element("span", { class: "value" }, ` ${formatNumber(weight, 4)}`),
    ]),
    remarks.length ? element("span", { class: "quiet" }, `  (${remarks.join(", ")})`) : "",
  ];
}

/** Returns "words" or "tokens", whichever the view shows. @param {Pick<HeadModel, "words">} model */
function nameUnits({ words }) {
  return words ? "words" : "tokens";
}

/** @param {HeadModel} model @param {number[]} units */
function joinUnitNames(model, units) {
  return units.map((unit) => nameUnit(model, unit)).join(" + ");
}

/**
 * @param {HeadModel} model
 * @param {Head[]} series
 * @param {Weights} weights
 */
export function createTable(model, series, { side, units, targets, headWeights, mean }) {
  const names = series.map((head) => (head === MEAN ? "Mean" : `Head ${model.heads[head] + 1}`));
  const columns = series.length > 1 ? [...headWeights, mean] : headWeights;
  if (series.length > 1) names.push("Mean of these");
  const threshold = side === "query" ? "from" : "to";
  const caption = `${model.valueName}, layer ${nameLayer(model, model.layer)}: ${threshold} ${joinUnitNames(model, units)}`;
  const heads = [side === "query" ? "Key" : "Query", ...names];
  const rows = targets.map((unit) => {
    const name = element("th", { scope: "row" }, element("bdi", {}, nameUnit(model, unit)));
    return element("tr", {}, name, ...columns.map((part) => element("td", {}, formatNumber(part[unit], 4))));
  });
  const titles = heads.map((text) => element("th", { scope: "col" }, text));
  return [
    element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...titles)),
    element("tbody", {}, ...rows),
  ];
}

/**
 * Returns a sentence on the number of lines and the share of attention that they represent.
 *
 * @param {HeadModel} model
 * @param {import("./lines.js").SelectedLines} selected
 */
export function describeLines(model, selected) {
  const { lines, drawableCount, share, visibleShare, isAutomatic, minWeight, isCapped, queries } = selected;
  const tokens =
    queries.length === model.units.length
      ? `all ${model.total}`
      : `the ${model.total} of the ${queries.length} ${nameUnits(model)} in view`;
  const threshold = minWeight > 0 ? ` of at least ${formatShort(minWeight, 2)}` : "";
  const count = formatCount(lines.length);
  const ofVisible = `${formatPercent(visibleShare)} of the visible attention`;
  const note = formatPercent(visibleShare) === formatPercent(share) ? "" : ` (${ofVisible})`;
  const subject =
    isAutomatic && lines.length < drawableCount
      ? `The strongest ${count} of ${formatCount(drawableCount)} lines${note}`
      : `${lines.length === 1 ? "1 line" : `${count} lines`}${threshold}`;
  const limit = ` At most ${formatCount(MAX_LINES)} lines are drawn; the weakest are omitted.`;
  return `${subject}, carrying ${formatPercent(share)} of ${tokens}.${isCapped ? limit : ""}`;
}

/** @param {number} share */
function formatPercent(share) {
  return `${formatNumber(100 * share, share > 0.9995 || share === 0 ? 0 : 1)}%`;
}

/**
 * Returns a sentence on the bars for hidden special tokens.
 *
 * @param {Map<number, number>} shares of the queries
 */
export function describeSpecials(shares) {
  if (!shares.size) return "";
  const mean = [...shares.values()].reduce((sum, share) => sum + share, 0) / shares.size;
  return ` Gray bars: attention on the hidden special tokens, on average ${formatPercent(mean)}.`;
}
