// Finds heads that attend from one word to another, in both directions, as `analyses/attention/find_heads.py` does.

import { element } from "../core/dom.js";
import { formatNumber, makeVisible } from "../core/text.js";
import { labelHeads } from "./heads.js";

/** @typedef {import("./trace.js").Trace} Trace */

/**
 * The attention of a head from a query word to a key word.
 *
 * @typedef {object} HeadScore
 * @property {number} layer from 0
 * @property {number} head from 0
 * @property {number} query index of a word
 * @property {number} key
 * @property {number} weight 0 to 1
 * @property {number} rank of the key word by its weight in the row of the query word, from 1
 */

/** Number of rows of the table. */
const MAX_ROWS = 10;
/** Maximum length of a word on the page, in characters. */
const MAX_LETTERS = 40;

/**
 * Returns all heads by descending attention from one word to another. Weights are summed over the tokens of the key word
 * and averaged over the tokens of the query word.
 *
 * @param {Trace} trace
 * @param {number} query index of a word
 * @param {number} key
 * @returns {HeadScore[]}
 */
export function rankHeads(trace, query, key) {
  const { words } = trace;
  const scores = [];
  for (let layer = 0; layer < trace.layers; layer++) {
    for (let head = 0; head < trace.heads; head++) {
      const row = mergeRow(trace.attention(layer, head), words, query);
      const rank = 1 + row.filter((weight) => weight > row[key]).length;
      scores.push({ layer, head, query, key, weight: row[key], rank });
    }
  }
  return sortScores(scores);
}

/** Returns the scores of both directions between two words. @param {Trace} trace @param {[number, number]} words */
export function rankBothDirections(trace, [first, second]) {
  return sortScores([...rankHeads(trace, first, second), ...rankHeads(trace, second, first)]);
}

/** @param {HeadScore[]} scores */
function sortScores(scores) {
  return scores.sort((a, b) => b.weight - a.weight);
}

/**
 * Returns the attention from a word to each word.
 *
 * @param {Float32Array} map attention weights between tokens, [query, key]
 * @param {import("./trace.js").Unit[]} words
 * @param {number} query index of a word
 */
function mergeRow(map, words, query) {
  const length = Math.sqrt(map.length);
  const { first, count } = words[query];
  return words.map((word) => {
    let sum = 0;
    for (let token = first; token < first + count; token++) {
      for (let key = word.first; key < word.first + word.count; key++) sum += map[token * length + key];
    }
    return sum / count;
  });
}

/**
 * Returns the initial pair of words: the last word of a text and the third last, as on the Heads page of the app. A
 * single word is paired with the first special token.
 *
 * @param {Trace} trace
 * @returns {[number, number]}
 */
export function chooseWords({ words }) {
  const indices = [...words.keys()].filter((i) => !words[i].special);
  const named = indices.filter((i) => /^[\p{L}\p{N}]+$/u.test(words[i].text));
  const choices = named.length ? named : indices;
  const last = choices[choices.length - 1];
  return [last, choices.length > 1 ? choices[Math.max(0, choices.length - 3)] : 0];
}

/** Shows the words as buttons, and a table of the heads with the largest weights between the two words clicked last. */
export class HeadFinder {
  /**
   * @param {(score: HeadScore) => void} onOpen called with the head that the user opens
   * @param {() => void} onChoose called when the selected words change
   */
  constructor(onOpen, onChoose) {
    this.onOpen = onOpen;
    this.onChoose = onChoose;
    this.words = element("div", { class: "words", role: "group", "aria-label": "Words" });
    this.caption = element("p", { class: "caption", id: "heads-caption" });
    const scroll = { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": "heads-caption" };
    this.table = element("div", scroll);
    this.host = element("div", { class: "find" }, this.words, this.caption, this.table);
    /** @type {Trace | null} */
    this.trace = null;
    /** The label of each head, [layer][head]. @type {string[][]} */
    this.labels = [];
    /** Indices of the selected words, in the order of the clicks. @type {[number, number]} */
    this.pair = [0, 0];
  }

  /**
   * @param {Trace} trace
   * @param {import("./heads.js").Measures} measures
   * @param {number[]} positions positions of one token of each initial word; ignored if they are not in the text
   */
  show(trace, measures, positions = []) {
    if (this.trace === trace) return;
    this.trace = trace;
    this.labels = labelHeads(measures);
    const [first, second] = positions.map((position) =>
      trace.words.findIndex((word) => word.first <= position && position < word.first + word.count),
    );
    this.pair = first >= 0 && second >= 0 && first !== second ? [first, second] : chooseWords(trace);
    this.words.replaceChildren(
      ...trace.words.map(({ special }, i) => {
        const word = element("button", { type: "button" }, this.name(i));
        word.classList.toggle("special", special);
        word.addEventListener("click", () => this.choose(i));
        return word;
      }),
    );
    this.update();
  }

  /** @param {number} word */
  choose(word) {
    if (word !== this.pair[1]) this.pair = [this.pair[1], word];
    this.update();
    this.onChoose();
  }

  /** The positions of the selected words' first tokens, as in URLs of the app. */
  get positions() {
    const words = this.trace?.words ?? [];
    return this.pair.map((word) => words[word].first);
  }

  update() {
    const { trace, pair } = this;
    if (!trace) return;
    [...this.words.children].forEach((word, i) => {
      word.setAttribute("aria-pressed", String(pair.includes(i)));
    });
    const scores = rankBothDirections(trace, pair).slice(0, MAX_ROWS);
    this.caption.textContent = `Heads with the largest attention weight between “${this.name(pair[0])}” and “${this.name(pair[1])}”`;
    const headings = ["Head", "From → to", "Weight", "Rank", "Label"].map((name) =>
      element("th", { scope: "col" }, name),
    );
    const head = element("thead", {}, element("tr", {}, ...headings));
    const body = element("tbody", {}, ...scores.map((score) => this.createRow(score)));
    this.table.replaceChildren(element("table", { "aria-labelledby": "heads-caption" }, head, body));
  }

  /** @param {number} word */
  name(word) {
    return shorten(makeVisible(this.trace?.words[word].text ?? ""));
  }

  /** @param {HeadScore} score */
  createRow(score) {
    const { layer, head, query, key, weight, rank } = score;
    const name = `Layer ${layer + 1}, head ${head + 1}`;
    const button = element("button", { type: "button", title: "Open in the view Attention" }, name);
    button.addEventListener("click", () => this.onOpen(score));
    const texts = [
      `${this.name(query)} → ${this.name(key)}`,
      formatNumber(weight, 4),
      `${rank} of ${this.words.children.length}`,
      this.labels[layer][head],
    ];
    const cells = texts.map((text) => element("td", {}, text));
    const row = element("tr", {}, element("td", {}, button), ...cells);
    row.dataset.weight = String(weight);
    return row;
  }
}

/** @param {string} text */
function shorten(text) {
  const letters = Array.from(text);
  return letters.length > MAX_LETTERS ? `${letters.slice(0, MAX_LETTERS).join("")}…` : text;
}
