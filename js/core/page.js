// A view as a self-contained page, opened from disk or in a frame; it sends no requests.

import { element } from "./dom.js";

/**
 * A payload as `views/payload.py` embeds it: bytes in `planes`, deflated to `length` bytes, encoded in base 85.
 *
 * @typedef {[planes: number, length: number, text: string]} Packed
 */

/**
 * The data of a page. A view of single layers has a payload per layer, and `start`, from 1, is the initial one.
 *
 * `key` identifies the view to an embedding page; "" if there is none.
 *
 * @typedef {{start: number, payloads: Packed[], key: string}} Held
 */

/** @typedef {(component: import("./mount.js").Component<Uint8Array>) => unknown} Mount */

const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=/?@^_`{|}~";

/** Mounts a view that requests other layers. @param {Mount} mount */
export async function openPage(mount) {
  const { start, payloads, key } = held();
  const fetchLayer = (/** @type {number} */ layer) => unpacked(payloads[layer - 1]);
  const data = await fetchLayer(start);
  /** @type {(wish: any) => void} */
  let grant = () => {};
  const listenTo = (/** @type {(wish: any) => void} */ listener) => {
    grant = listener;
  };
  const setStateValue = (/** @type {string} */ name, /** @type {unknown} */ value) =>
    say(key, { [name]: value });
  const show = () => mount({ parentElement: document, data, setStateValue, fetchLayer, listenTo });
  showing(show);
  if (key) answer(key, show, (wish) => grant(wish));
}

/** Posts a message to the embedding page, such as a notebook. @param {string} key @param {object} said */
function say(key, said) {
  if (key) window.parent.postMessage({ bertProbe: key, ...said }, "*");
}

/**
 * Applies the views that the embedding page sets, after announcing this page to it.
 *
 * @param {string} key @param {() => void} show @param {(wish: any) => void} grant
 */
function answer(key, show, grant = () => {}) {
  window.addEventListener("message", ({ data, source }) => {
    if (source !== window.parent || data?.bertProbe !== key) return;
    if (data.theme) {
      document.documentElement.dataset.theme = data.theme;
      show();
    }
    if (data.wish) grant(data.wish);
    if (data.asked) say(key, {});
  });
  say(key, {});
}

/** Mounts a view for each payload, below each other. @param {Mount} mount */
export async function openAll(mount) {
  const { payloads, key } = held();
  const views = await Promise.all(payloads.map(unpacked));
  const first = /** @type {HTMLElement} */ (document.querySelector("section"));
  const places = views.map(() => element("div", {}, first.cloneNode()));
  first.replaceWith(...places);
  const show = () =>
    views.forEach((data, i) => {
      mount({ parentElement: places[i], data, setStateValue() {} });
    });
  showing(show);
  if (key) answer(key, show);
}

/** @returns {Held} */
function held() {
  return JSON.parse(document.getElementById("payload")?.textContent ?? "");
}

/** Runs now, and whenever the system theme changes. @param {() => void} show */
function showing(show) {
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

/** @param {Packed} packed */
export async function unpacked([planes, length, text]) {
  const inflate = new DecompressionStream("deflate-raw");
  const stream = new Blob([bytesOf(text).subarray(0, length)]).stream().pipeThrough(inflate);
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (planes === 1) return bytes;
  const count = bytes.length / planes;
  const whole = new Uint8Array(bytes.length);
  for (let plane = 0; plane < planes; plane++) {
    for (let i = 0; i < count; i++) whole[i * planes + plane] = bytes[plane * count + i];
  }
  return whole;
}

/** Decodes base 85: five characters are four bytes, big-endian. @param {string} text */
function bytesOf(text) {
  const digits = new Uint8Array(128);
  for (let i = 0; i < LETTERS.length; i++) digits[LETTERS.charCodeAt(i)] = i;
  const bytes = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let group = 0; group < text.length / 5; group++) {
    let number = 0;
    for (let i = 0; i < 5; i++) number = number * 85 + digits[text.charCodeAt(5 * group + i)];
    bytes.setUint32(4 * group, number);
  }
  return new Uint8Array(bytes.buffer);
}
