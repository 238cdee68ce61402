// Reads the theme (colors and font) of the page, and measures texts in its font.

import constants from "../../bert_probe/views/constants.json" with { type: "json" };
import { luminance, mixColors, parseColor } from "./color.js";

/**
 * @typedef {object} Theme
 * @property {boolean} isDark
 * @property {string} background
 * @property {string} ink
 * @property {string} muted text color for secondary text
 * @property {string} line frame color
 * @property {string} accent
 * @property {string} font font family
 * @property {[string, string]} missing background and hatching of missing values
 */

/**
 * The colors and the font of a theme.
 *
 * @typedef {object} ThemeColors
 * @property {string} background
 * @property {string} ink
 * @property {string} accent
 * @property {string} font font family
 */

/**
 * Returns Streamlit's theme, which is read from CSS variables, or the default theme if the variables are missing.
 *
 * @param {Element} element
 * @returns {Theme}
 */
export function readTheme(element) {
  const style = getComputedStyle(element);
  /** @param {string} name @param {string} otherwise */
  const readVariable = (name, otherwise) => style.getPropertyValue(name).trim() || otherwise;
  const background = readVariable("--st-background-color", constants.paper.light);
  const scheme = isDarkColor(background) ? "dark" : "light";
  return createTheme({
    background,
    ink: readVariable("--st-text-color", constants.ink[scheme]),
    accent: readVariable("--st-primary-color", constants.accent[scheme]),
    font: readVariable("--st-font", "sans-serif"),
  });
}

/** @param {string} background */
function isDarkColor(background) {
  return luminance(parseColor(background)) < 0.3;
}

/**
 * @param {ThemeColors} colors
 * @returns {Theme}
 */
export function createTheme(colors) {
  const [paper, text] = [parseColor(colors.background), parseColor(colors.ink)];
  return {
    ...colors,
    isDark: isDarkColor(colors.background),
    muted: mixColors(text, paper, 0.36),
    line: mixColors(text, paper, 0.82),
    missing: [mixColors(text, paper, 0.9), mixColors(text, paper, 0.72)],
  };
}

/**
 * @param {string} family
 * @param {number} size
 */
export function formatFont(family, size, weight = 400) {
  return `${weight} ${size}px ${family}`;
}

/**
 * Returns a function that measures texts in a font.
 *
 * @param {string} family
 * @returns {import("./text.js").Measure}
 */
export function createMeasure(family) {
  const context = document.createElement("canvas").getContext("2d");
  if (!context) throw new Error("This browser does not support the 2-D canvas.");
  return memoizeMeasure((text, size, weight = 400) => {
    context.font = formatFont(family, size, weight);
    return context.measureText(text).width;
  });
}

/**
 * Returns a memoized version of a measure, because every layout measures the same labels.
 *
 * @param {import("./text.js").Measure} measure
 * @returns {import("./text.js").Measure}
 */
export function memoizeMeasure(measure) {
  /** @type {Map<string, number>} */
  const widths = new Map();
  return (text, size, weight = 400) => {
    const key = `${size}/${weight}/${text}`;
    let width = widths.get(key);
    if (width === undefined) {
      width = measure(text, size, weight);
      widths.set(key, width);
    }
    return width;
  };
}
