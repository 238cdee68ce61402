// The page's theme as it stands around an element, and the widths of texts in its font.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { channels, luminance, mixed } from "./colour.js";

/**
 * @typedef {object} Theme
 * @property {boolean} dark
 * @property {string} background
 * @property {string} ink
 * @property {string} muted of words that say less
 * @property {string} line of frames
 * @property {string} accent
 * @property {string} font its family
 * @property {[string, string]} missing ground and hatching of what has no value
 */

/**
 * Streamlit's theme, which it writes into CSS variables, or the usual one.
 *
 * @param {Element} element
 * @returns {Theme}
 */
export function readTheme(element) {
  const style = getComputedStyle(element);
  /** @param {string} name @param {string} otherwise */
  const variable = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const background = variable("--st-background-color", constants.paper.light);
  const paper = channels(background);
  const dark = luminance(paper) < 0.3;
  const usual = dark ? "dark" : "light";
  const ink = variable("--st-text-color", constants.ink[usual]);
  const text = channels(ink);
  return {
    dark,
    background,
    ink,
    muted: mixed(text, paper, 0.36),
    line: mixed(text, paper, 0.82),
    accent: variable("--st-primary-color", constants.accent[usual]),
    font: variable("--st-font", "sans-serif"),
    missing: [mixed(text, paper, 0.9), mixed(text, paper, 0.72)],
  };
}

/**
 * @param {string} family
 * @param {number} size
 */
export function fontOf(family, size, weight = 400) {
  return `${weight} ${size}px ${family}`;
}

/**
 * Measures texts in one font and remembers, since every layout asks for the same labels.
 *
 * @param {string} family
 * @returns {import("./text.js").Measure}
 */
export function textMeasure(family) {
  const context = document.createElement("canvas").getContext("2d");
  if (!context) throw new Error("This browser draws nothing.");
  /** @type {Map<string, number>} */
  const known = new Map();
  return (text, size, weight = 400) => {
    const id = `${size}/${weight}/${text}`;
    let width = known.get(id);
    if (width === undefined) {
      context.font = fontOf(family, size, weight);
      width = context.measureText(text).width;
      known.set(id, width);
    }
    return width;
  };
}
