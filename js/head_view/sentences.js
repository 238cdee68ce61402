// The texts of the head view: title, readout and table of a token, and the share of the lines.

import { element } from "../core/dom.js";
import { counted, formatted, plainNumber } from "../core/text.js";
import { MEAN } from "../core/view.js";
import { MOST_LINES } from "./lines.js";
import { layerName, seriesName, unitName } from "./model.js";

/**
 * @typedef {import("../core/view.js").Head} Head
 * @typedef {import("../core/view.js").Side} Side
 * @typedef {import("./model.js").HeadModel} HeadModel
 */

/**
 * Weights between the active units and those of the other side.
 *
 * @typedef {object} Weights
 * @property {Side} side
 * @property {number[]} units
 * @property {number[]} targets
 * @property {Float64Array[]} parts one for each visible head
 * @property {Float64Array} mean over the visible heads
 */

/** Why the app selected a head: layer from 1, head from 0. */
/** @typedef {{layer: number, head: number, text: string}} Reason */

/**
 * The title of a picture.
 *
 * @param {HeadModel} model
 * @param {Head[]} series
 */
export function titleOf(model, series) {
  const { title, layer, rolled } = model;
  const name = layerName(model, layer);
  return rolled ? `${title} layer ${name}` : `${title} in layer ${name}, ${seriesName(model, series)}`;
}

/**
 * A note on the selected heads, from their labels.
 *
 * @param {HeadModel} model
 * @param {Head[]} series
 * @param {string[]} labels of the layer's heads
 */
function noteOf(model, series, labels) {
  if (model.rolled) return "computed for the whole layer, so there are no single heads";
  if (series[0] === MEAN) return "the mean hides single heads; click a head to see its attention";
  const notes = series
    .map(Number)
    .filter((head) => labels[head])
    .map((head) => (series.length > 1 ? `${model.heads[head] + 1} ${labels[head]}` : labels[head]));
  // Labels are always those of tokens.
  const where = model.words ? "by token" : "on this text";
  if (notes.length) return `${where}: ${notes.slice(0, 6).join(" · ")}`;
  return series.length === 1 && labels.length ? "no distinctive pattern on this text" : "";
}

/**
 * The readout without an active token: the title and a note on the heads.
 *
 * @param {HeadModel} model @param {Head[]} series @param {string[]} labels of the layer's heads
 */
export function titleNodes(model, series, labels) {
  const note = noteOf(model, series, labels);
  const nodes = note ? [element("span", { class: "quiet" }, ` · ${note}`)] : [];
  return [element("b", {}, titleOf(model, series)), ...nodes];
}

/**
 * Why the app selected a head, with a link to the mean.
 *
 * @param {Reason} reason @param {() => void} showMean
 */
export function reasonNodes({ layer, head, text }, showMean) {
  const mean = element("button", { type: "button", class: "link" }, "show the mean of all heads");
  mean.onclick = showMean;
  return [element("b", {}, `Layer ${layer}, head ${head + 1}`), `: ${text} · `, mean];
}

/**
 * "ground (11) attends to left (9) 0.6486 · we (7) 0.1200 · 12 others 0.2314"
 *
 * @param {HeadModel} model
 * @param {Weights} weights
 */
export function rowNodes(model, { side, units, targets, parts, mean }) {
  const several = units.length > 1;
  const remarks = [several ? "summed" : "", parts.length > 1 ? "mean over the visible heads" : ""].filter(
    Boolean,
  );
  const subject = units.length > 3 ? `${units.length} ${unitsName(model)}` : unitNames(model, units);
  const attends = several ? "attend to" : "attends to";
  const verb = side === "query" ? attends : `${several ? "are" : "is"} attended to by`;
  const best = [...targets].sort((a, b) => mean[b] - mean[a]).slice(0, 4);
  /** @type {[string, number][]} */
  const named = best.map((unit) => [unitName(model, unit), mean[unit]]);
  const others = model.units.length - best.length;
  if (others > 0) {
    const all = mean.reduce((sum, weight) => sum + weight, 0);
    const remainder = all - named.reduce((sum, [, weight]) => sum + weight, 0);
    named.push([others === 1 ? "1 other" : `${others} others`, remainder]);
  }
  return [
    element("b", {}, element("bdi", {}, subject)),
    ` ${verb} `,
    ...named.flatMap(([name, weight], i) => [
      i ? " · " : "",
      element("bdi", {}, name),
      element("span", { class: "value" }, ` ${formatted(weight, 4)}`),
    ]),
    remarks.length ? element("span", { class: "quiet" }, `  (${remarks.join(", ")})`) : "",
  ];
}

/** The plural name of the units. @param {Pick<HeadModel, "words">} model */
function unitsName({ words }) {
  return words ? "words" : "tokens";
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
 * A sentence on the number of lines and the share of attention that they carry.
 *
 * @param {HeadModel} model
 * @param {import("./lines.js").Drawn} drawn
 */
export function shareSentence(model, { lines, possible, share, told, automatic, least, capped, queries }) {
  const count = queries.length;
  const isComplete = count === model.units.length;
  const whose = isComplete
    ? `all ${model.total}`
    : `the ${model.total} of the ${count} ${unitsName(model)} in view`;
  const some = counted(lines.length);
  const part = lines.length < possible;
  const from = least > 0 ? ` of at least ${plainNumber(least, 2)}` : "";
  const plain = `${lines.length === 1 ? "1 line" : `${some} lines`}${from}`;
  const hidden = percent(told) === percent(share) ? "" : ` (${percent(told)} of the visible attention)`;
  const few = part ? `The strongest ${some} of ${counted(possible)} lines${hidden}` : plain;
  const most = counted(MOST_LINES);
  const left = capped ? ` At most ${most} lines are drawn; the weakest are omitted.` : "";
  return `${automatic ? few : plain}, carrying ${percent(share)} of ${whose}.${left}`;
}

/** @param {number} share */
function percent(share) {
  return `${formatted(100 * share, share > 0.9995 || share === 0 ? 0 : 1)} %`;
}

/**
 * A sentence on the bars for hidden special tokens.
 *
 * @param {Map<number, number>} shares of the queries
 */
export function specialSentence(shares) {
  const all = [...shares.values()];
  if (!all.length) return "";
  return ` Gray bars: attention on the hidden special tokens, on average ${percent(all.reduce((sum, share) => sum + share, 0) / all.length)}.`;
}
