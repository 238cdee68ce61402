// The head view as a page of its own, opened from disk: the page holds every layer, and nothing is asked for.

import mount from "./head_view.js";

/** @type {{start: number, layers: string[]}} */
const held = JSON.parse(document.getElementById("payload")?.textContent ?? "");

/** @param {number} layer from 1 */
function bytesOf(layer) {
  return Uint8Array.from(atob(held.layers[layer - 1]), (letter) => letter.charCodeAt(0));
}

const data = bytesOf(held.start);

function show() {
  const fetchLayer = async (/** @type {number} */ layer) => bytesOf(layer);
  mount({ parentElement: document, data, setStateValue() {}, fetchLayer });
}

show();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
