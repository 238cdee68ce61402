// Renders views as files without a browser, in the JavaScript engine embedded in Python.

import { svgOf } from "./core/saving.js";
import { textMeasured, themeOf } from "./core/theme.js";
import { headFile } from "./head_view/file.js";
import { mapFile } from "./layer_map/file.js";
import { matrixFile } from "./matrix/file.js";
import { gridFile } from "./model_view/file.js";

/** @typedef {import("./core/saving.js").Saved} Saved */

/** @type {Record<string, import("./core/saving.js").FileOf>} */
const FILES = { matrix: matrixFile, head_view: headFile, model_view: gridFile, layer_map: mapFile };

/**
 * The arguments from `views/drawing.py`, in place of a browser.
 *
 * @typedef {object} Given
 * @property {string} component
 * @property {"png" | "svg"} kind format of the file
 * @property {import("./core/theme.js").Paints} paints
 * @property {import("./core/text.js").Measure} measure
 * @property {(width: number, height: number, pixels: string) => string} encoded the data URL of an image, from its
 *   base64-encoded RGBA pixels
 */

/**
 * The SVG of base64-encoded payloads, and the pixel ratio for a PNG.
 *
 * @param {string[]} payloads
 * @param {Given} given
 */
export function drawn(payloads, { component, kind, paints, measure, encoded }) {
  const look = { theme: themeOf(paints), measure: textMeasured(measure) };
  const pictures = payloads.map((payload) => FILES[component](fromBase64(payload), look, kind));
  const whole = stacked(pictures);
  const address = (/** @type {import("./core/pen.js").Pixels} */ { width, height, words }) => {
    return encoded(width, height, toBase64(new Uint8Array(words.buffer)));
  };
  // A PNG is not enlarged, so details smaller than its pixels can be omitted.
  const resolution = kind === "png" ? whole.ratio : Number.POSITIVE_INFINITY;
  return JSON.stringify({ svg: svgOf(whole, address, resolution), ratio: whole.ratio });
}

/** Stacks pictures below each other. @param {Saved[]} pictures @returns {Saved} */
function stacked(pictures) {
  const tops = pictures.map((_, i) => pictures.slice(0, i).reduce((sum, one) => sum + one.height, 0));
  const [first] = pictures;
  if (pictures.length === 1) return first;
  return {
    ...first,
    width: Math.max(...pictures.map((one) => one.width)),
    height: pictures.reduce((sum, one) => sum + one.height, 0),
    ratio: Math.min(...pictures.map((one) => one.ratio)),
    paint: (pen) => {
      pictures.forEach((one, i) => {
        pen.moved(0, tops[i], 0, () => one.paint(pen));
      });
    },
  };
}

// Built-ins of the engine that TypeScript does not know yet.

/** @param {string} text @returns {Uint8Array} */
function fromBase64(text) {
  return /** @type {any} */ (Uint8Array).fromBase64(text);
}

/** @param {Uint8Array} bytes @returns {string} */
function toBase64(bytes) {
  return /** @type {any} */ (bytes).toBase64();
}
