// Texts as they are drawn: made visible, cut to a width, thinned, and numbers in words.

/**
 * The width of a text in CSS pixels.
 *
 * @typedef {(text: string, size: number, weight?: number) => number} Measure
 */

/**
 * A token as something that can be seen: control characters and lone spaces get a symbol.
 *
 * @param {string} text
 */
export function visibleText(text) {
  if (text.trim() === "") return text === "" ? "∅" : "␣";
  return text
    .replace(/\r?\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]/gu, "\ufffd");
}

/**
 * The text cut to a width, with an ellipsis where something is missing.
 *
 * @param {string} text
 * @param {number} limit
 * @param {number} size
 * @param {Measure} measure
 */
export function ellipsised(text, limit, size, measure, weight = 400) {
  if (measure(text, size, weight) <= limit) return text;
  const letters = Array.from(text); // by code point, so that no surrogate pair is cut in two
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (measure(`${letters.slice(0, middle).join("")}…`, size, weight) <= limit) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}

/**
 * A bold text in lines of a width; words are kept whole where they can be.
 *
 * @param {string} text
 * @param {number} width
 * @param {number} size
 * @param {Measure} measure
 */
export function wrapped(text, width, size, measure) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const last = lines[lines.length - 1];
    const longer = last ? `${last} ${word}` : word;
    if (last && measure(longer, size, 600) > width) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines.map((line) => ellipsised(line, width, size, measure, 600));
}

/**
 * The width of the widest label, at most `limit`.
 *
 * @param {Iterable<string>} labels
 * @param {number} size
 * @param {Measure} measure
 * @param {number} limit
 */
export function widest(labels, size, measure, limit) {
  let most = 0;
  for (const label of labels) {
    most = Math.max(most, measure(label, size));
    if (most >= limit) return limit;
  }
  return most;
}

/**
 * 1, 2, 5, 10, 20 …: the thinning at which `count` labels have the room they need.
 *
 * @param {number} count
 * @param {number} pitch
 * @param {number} room
 */
export function everyNth(count, pitch, room) {
  for (let decade = 1; ; decade *= 10) {
    for (const step of [1, 2, 5]) {
      const every = decade * step;
      if (every * pitch >= room || every >= count) return every;
    }
  }
}

/**
 * Whether a thinned label is among those shown; numbers are thinned to round ones, tokens by their order.
 *
 * @param {string} label
 * @param {number} index
 * @param {number} every
 */
export function isShown(label, index, every) {
  if (every === 1) return true;
  const number = /^-?\d+$/.test(label) ? Number(label) : index;
  return number % every === 0;
}

/**
 * @param {number} value
 * @param {number} decimals
 */
export function formatted(value, decimals) {
  if (Number.isNaN(value)) return "no value";
  const text = value.toFixed(decimals);
  return typographic(Number(text) === 0 ? text.replace("-", "") : text);
}

/** 1,234: written out, as not every engine knows how people write numbers. @param {number} count */
export function counted(count) {
  return String(count).replace(/\B(?=(\d{3})+$)/g, ",");
}

/**
 * A number as it is usually written, with few digits.
 *
 * @param {number} value
 * @param {number} digits
 */
export function plainNumber(value, digits) {
  return typographic(String(Number(value.toPrecision(digits))));
}

/** @param {string} number */
function typographic(number) {
  return number.replace("-", "−");
}
