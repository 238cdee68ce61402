// A view as a page of its own, opened from disk or in a frame: the page holds all that is drawn, and nothing is asked for.

/**
 * What the page holds: payloads, base64, and which of them is shown first, from 1. A view of one layer at a time has
 * one for each layer.
 *
 * @typedef {{start: number, payloads: string[]}} Held
 */

/** @param {(component: import("./mount.js").Component<Uint8Array>) => unknown} mount */
export function openPage(mount) {
  /** @type {Held} */
  const held = JSON.parse(document.getElementById("payload")?.textContent ?? "");
  const bytesOf = (/** @type {number} */ number) =>
    Uint8Array.from(atob(held.payloads[number - 1]), (letter) => letter.charCodeAt(0));
  const data = bytesOf(held.start);

  function show() {
    const fetchLayer = async (/** @type {number} */ layer) => bytesOf(layer);
    mount({ parentElement: document, data, setStateValue() {}, fetchLayer });
  }

  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}
