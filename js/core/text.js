// Formatting of texts and numbers: symbols for whitespace, truncation, line wrapping, and thinning of labels.

/**
 * A function that returns the width of a text in CSS pixels.
 *
 * @typedef {(text: string, size: number, weight?: number) => number} Measure
 */

/**
 * Replaces control characters, an empty token, and a token that contains only spaces with symbols.
 *
 * @param {string} text
 */
export function makeVisible(text) {
  if (text.trim() === "") return text === "" ? "∅" : "␣";
  return text
    .replace(/\r?\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]/gu, "\ufffd");
}

/**
 * Truncates a text to a width, with an ellipsis.
 *
 * @param {string} text
 * @param {number} limit
 * @param {number} size
 * @param {Measure} measure
 */
export function truncateText(text, limit, size, measure, weight = 400) {
  if (measure(text, size, weight) <= limit) return text;
  const letters = Array.from(text); // splits by code point, so that surrogate pairs stay intact
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(`${letters.slice(0, middle).join("")}…`, size, weight) <= limit) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}

/**
 * Wraps a bold text to a width, between words if possible.
 *
 * @param {string} text
 * @param {number} width
 * @param {number} size
 * @param {Measure} measure
 */
export function wrapText(text, width, size, measure) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const last = lines[lines.length - 1];
    const longer = last ? `${last} ${word}` : word;
    if (last && measure(longer, size, 600) > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.map((line) => truncateText(line, width, size, measure, 600));
}

/**
 * Returns the width of the widest label, at most `limit`.
 *
 * @param {Iterable<string>} labels
 * @param {number} size
 * @param {Measure} measure
 * @param {number} limit
 */
export function measureWidest(labels, size, measure, limit) {
  let maximum = 0;
  for (const label of labels) {
    maximum = Math.max(maximum, measure(label, size));
    if (maximum >= limit) return limit;
  }
  return maximum;
}

/**
 * Returns the smallest step out of 1, 2, 5, 10, 20 … with enough space between labels if only each step-th label is
 * shown. `pitch` is the distance between labels, `room` the space that a label needs.
 *
 * @param {number} count
 * @param {number} pitch
 * @param {number} room
 */
export function computeLabelStep(count, pitch, room) {
  for (let decade = 1; ; decade *= 10) {
    for (const step of [1, 2, 5]) {
      const labelStep = decade * step;
      if (labelStep * pitch >= room || labelStep >= count) return labelStep;
    }
  }
}

/**
 * Returns the smallest step out of 10, 20, 50, 100 … with enough space between the numbers of a residue ruler.
 *
 * @param {number} pitch
 * @param {number} room
 */
export function computeRulerStep(pitch, room) {
  return 10 * computeLabelStep(Number.POSITIVE_INFINITY, 10 * pitch, room);
}

/**
 * Returns whether a ruler shows the number of a residue: the first number, and each multiple of the step.
 *
 * @param {number | null} number @param {number} step
 */
export function isTick(number, step) {
  return number !== null && (number === 1 || number % step === 0);
}

/**
 * Returns whether a label is shown after thinning. For a number, the number must be a multiple of the step; for any
 * other label, its index.
 *
 * @param {string} label
 * @param {number} index
 * @param {number} labelStep
 */
export function isLabelVisible(label, index, labelStep) {
  if (labelStep === 1) return true;
  const number = /^-?\d+$/.test(label) ? Number(label) : index;
  return number % labelStep === 0;
}

/**
 * @param {number} value
 * @param {number} decimals
 */
export function formatNumber(value, decimals) {
  if (Number.isNaN(value)) return "no value";
  const text = value.toFixed(decimals);
  return replaceMinus(Number(text) === 0 ? text.replace("-", "") : text);
}

/** Formats a count with commas, as in 1,234. The embedded JavaScript engine lacks Intl. @param {number} count */
export function formatCount(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * Formats a number with few digits, without an exponent if possible.
 *
 * @param {number} value
 * @param {number} digits
 */
export function formatShort(value, digits) {
  return replaceMinus(String(Number(value.toPrecision(digits))));
}

/** @param {string} number */
function replaceMinus(number) {
  return number.replace("-", "−");
}
