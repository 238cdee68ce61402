// What the head view says in words: what is shown, a token's row, its table, and what the lines carry.

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
 * Weights between the units looked at and those of the other side.
 *
 * @typedef {object} Weights
 * @property {Side} side
 * @property {number[]} units
 * @property {number[]} targets
 * @property {Float64Array[]} parts one for each of the heads drawn
 * @property {Float64Array} mean of those
 */

/** Why a head is shown that nobody chose: layer from 1, head from 0. */
/** @typedef {{layer: number, head: number, text: string}} Reason */

/**
 * What a picture is called.
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
 * What the chosen heads do, where their profile says it.
 *
 * @param {HeadModel} model
 * @param {Head[]} series
 * @param {string[]} labels of the layer's heads
 */
function noteOf(model, series, labels) {
  if (model.rolled) return "of the layer as a whole, so there are no single heads";
  if (series[0] === MEAN) return "the mean hides what single heads do; click a head to see it alone";
  const said = series
    .map(Number)
    .filter((head) => labels[head])
    .map((head) => (series.length > 1 ? `${model.heads[head] + 1} ${labels[head]}` : labels[head]));
  // Labels are of tokens, whatever is drawn.
  const where = model.words ? "piece by piece" : "on this text";
  if (said.length) return `${where}: ${said.slice(0, 6).join(" · ")}`;
  return series.length === 1 && labels.length ? "nothing stands out in where it looks on this text" : "";
}

/**
 * What is said while nobody looks at a token: what the picture is, and what its heads do.
 *
 * @param {HeadModel} model @param {Head[]} series @param {string[]} labels of the layer's heads
 */
export function titleNodes(model, series, labels) {
  const note = noteOf(model, series, labels);
  const said = note ? [element("span", { class: "quiet" }, ` · ${note}`)] : [];
  return [element("b", {}, titleOf(model, series)), ...said];
}

/**
 * Why a head is shown that nobody chose, with a way to the mean.
 *
 * @param {Reason} reason @param {() => void} showMean
 */
export function reasonNodes({ layer, head, text }, showMean) {
  const mean = element("button", { type: "button", class: "link" }, "show the mean of all");
  mean.onclick = showMean;
  return [element("b", {}, `Layer ${layer}, head ${head + 1}`), `: ${text} · `, mean];
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
  const who = units.length > 3 ? `${units.length} ${unitsName(model)}` : unitNames(model, units);
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

/** What the units are. @param {Pick<HeadModel, "words">} model */
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
 * What the lines stand for, with the share of attention that they carry.
 *
 * @param {HeadModel} model
 * @param {import("./lines.js").Drawn} drawn
 */
export function shareSentence(model, { lines, possible, share, told, automatic, least, capped, queries }) {
  const count = queries.length;
  const whole = count === model.units.length;
  const whose = whole
    ? `all ${model.total}`
    : `the ${model.total} of the ${count} ${unitsName(model)} in view`;
  const some = counted(lines.length);
  const part = lines.length < possible;
  const from = least > 0 ? ` of at least ${plainNumber(least, 2)}` : "";
  const plain = `${lines.length === 1 ? "1 line" : `${some} lines`}${from}`;
  const hidden = percent(told) === percent(share) ? "" : ` tell ${percent(told)} of what is shown`;
  const few = part ? `The strongest ${some} of ${counted(possible)} lines${hidden}` : plain;
  const most = counted(MOST_LINES);
  const left = capped ? ` More than ${most} cannot be drawn; the weakest are left out.` : "";
  return `${automatic ? few : plain}, carrying ${percent(share)} of ${whose}.${left}`;
}

/** @param {number} share */
function percent(share) {
  return `${formatted(100 * share, share > 0.9995 || share === 0 ? 0 : 1)} %`;
}

/**
 * What the bars beside the queries stand for, where special tokens are hidden.
 *
 * @param {Map<number, number>} shares of the queries
 */
export function specialSentence(shares) {
  const all = [...shares.values()];
  if (!all.length) return "";
  return ` Grey bars: special tokens, which are hidden, get ${percent(all.reduce((sum, one) => sum + one, 0) / all.length)}.`;
}
