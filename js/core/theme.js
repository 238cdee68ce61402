// The theme around an element, and text widths in its font.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { channels, luminance, mixed } from "./color.js";

/**
 * @typedef {object} Theme
 * @property {boolean} dark
 * @property {string} background
 * @property {string} ink
 * @property {string} muted of secondary text
 * @property {string} line of frames
 * @property {string} accent
 * @property {string} font its family
 * @property {[string, string]} missing background and hatching of missing values
 */

/**
 * The colors and the font of a theme.
 *
 * @typedef {object} Paints
 * @property {string} background
 * @property {string} ink
 * @property {string} accent
 * @property {string} font its family
 */

/**
 * Streamlit's theme, read from its CSS variables, or the default.
 *
 * @param {Element} element
 * @returns {Theme}
 */
export function readTheme(element) {
  const style = getComputedStyle(element);
  /** @param {string} name @param {string} otherwise */
  const variable = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const background = variable("--st-background-color", constants.paper.light);
  const usual = isDark(background) ? "dark" : "light";
  return themeOf({
    background,
    ink: variable("--st-text-color", constants.ink[usual]),
    accent: variable("--st-primary-color", constants.accent[usual]),
    font: variable("--st-font", "sans-serif"),
  });
}

/** @param {string} background */
function isDark(background) {
  return luminance(channels(background)) < 0.3;
}

/**
 * @param {Paints} paints
 * @returns {Theme}
 */
export function themeOf(paints) {
  const [paper, text] = [channels(paints.background), channels(paints.ink)];
  return {
    ...paints,
    dark: isDark(paints.background),
    muted: mixed(text, paper, 0.36),
    line: mixed(text, paper, 0.82),
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
 * Measures texts in one font.
 *
 * @param {string} family
 * @returns {import("./text.js").Measure}
 */
export function textMeasure(family) {
  const context = document.createElement("canvas").getContext("2d");
  if (!context) throw new Error("This browser does not support the 2-D canvas.");
  return textMeasured((text, size, weight = 400) => {
    context.font = fontOf(family, size, weight);
    return context.measureText(text).width;
  });
}

/**
 * A memoized measure, because every layout measures the same labels.
 *
 * @param {import("./text.js").Measure} measure
 * @returns {import("./text.js").Measure}
 */
export function textMeasured(measure) {
  /** @type {Map<string, number>} */
  const known = new Map();
  return (text, size, weight = 400) => {
    const id = `${size}/${weight}/${text}`;
    let width = known.get(id);
    if (width === undefined) {
      width = measure(text, size, weight);
      known.set(id, width);
    }
    return width;
  };
}
