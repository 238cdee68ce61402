// Draws a small histogram of reference scores in which one score is marked.

const NAMESPACE = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, FOOT, BINS] = [520, 88, 20, 52];

/** @param {string} name @param {Record<string, string | number>} attributes @param {string} [text] */
function shape(name, attributes, text) {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  if (text) node.textContent = text;
  return node;
}

/**
 * @param {Float32Array} sorted reference scores in ascending order
 * @param {number} score
 * @param {string} label for screen readers
 */
export function createHistogram(sorted, score, label) {
  const low = Math.floor(Math.min(sorted[0], score) * 10) / 10;
  const x = (/** @type {number} */ value) => ((value - low) / (1 - low)) * WIDTH;
  const counts = new Array(BINS).fill(0);
  for (const value of sorted) counts[Math.min(Math.floor((x(value) / WIDTH) * BINS), BINS - 1)]++;
  const largest = Math.max(...counts);
  const svg = shape("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT + FOOT}`,
    role: "img",
    "aria-label": label,
    class: "histogram",
  });
  counts.forEach((count, bin) => {
    const height = (count / largest) * (HEIGHT - 8);
    const [left, width] = [(bin * WIDTH) / BINS + 0.5, WIDTH / BINS - 1];
    svg.append(shape("rect", { x: left, y: HEIGHT - height, width, height, class: "reference" }));
  });
  svg.append(shape("line", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT, class: "axis" }));
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    const anchor = tick === 1 ? "end" : "middle";
    svg.append(shape("text", { x: x(tick), y: HEIGHT + 15, "text-anchor": anchor }, String(tick)));
  }
  svg.append(shape("line", { x1: x(score), x2: x(score), y1: 0, y2: HEIGHT, class: "score" }));
  return svg;
}
