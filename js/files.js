// Pictures as files without a browser: what an engine within Python runs. The views' own painting, one beneath the other.

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
 * What `views/drawing.py` gives, where no browser does.
 *
 * @typedef {object} Given
 * @property {string} component
 * @property {"png" | "svg"} kind what becomes of the SVG
 * @property {import("./core/theme.js").Paints} paints
 * @property {import("./core/text.js").Measure} measure
 * @property {(width: number, height: number, pixels: string) => string} encoded address of an image, given base64 of
 *   red, green, blue and alpha of its pixels
 */

/**
 * The picture of some payloads, base64, as SVG; `ratio` is what a PNG of it has.
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
  // As a PNG it is not enlarged: what is finer than its pixels need not be drawn.
  const resolution = kind === "png" ? whole.ratio : Number.POSITIVE_INFINITY;
  return JSON.stringify({ svg: svgOf(whole, address, resolution), ratio: whole.ratio });
}

/** One beneath the other. @param {Saved[]} pictures @returns {Saved} */
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

// Both are the engine's own, which TypeScript does not know yet.

/** @param {string} text @returns {Uint8Array} */
function fromBase64(text) {
  return /** @type {any} */ (Uint8Array).fromBase64(text);
}

/** @param {Uint8Array} bytes @returns {string} */
function toBase64(bytes) {
  return /** @type {any} */ (bytes).toBase64();
}
