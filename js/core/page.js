// A view as a page of its own, opened from disk or in a frame: the page holds all that is drawn, and nothing is asked for.

import { element } from "./dom.js";

/**
 * A payload as `views/payload.py` writes it into a page: bytes in `planes`, deflated to `length`, five letters for four.
 *
 * @typedef {[planes: number, length: number, text: string]} Packed
 */

/**
 * What the page holds. A view of one layer at a time has a payload for each, of which `start`, from 1, is shown first.
 *
 * `key` names the view to a page around this one; "" where there is none.
 *
 * @typedef {{start: number, payloads: Packed[], key: string}} Held
 */

/** @typedef {(component: import("./mount.js").Component<Uint8Array>) => unknown} Mount */

const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=/?@^_`{|}~";

/** One view, which asks for another layer. @param {Mount} mount */
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

/** To a page around this one, which may have a kernel. @param {string} key @param {object} said */
function say(key, said) {
  if (key) window.parent.postMessage({ bertProbe: key, ...said }, "*");
}

/**
 * Does what the page around wishes, once it knows that this one is there.
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

/** A view for each payload, one beneath the other. @param {Mount} mount */
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

/** Now, and whenever the reader's system turns dark or light. @param {() => void} show */
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

/** Five letters are a number to base 85, of four bytes, the highest first. @param {string} text */
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
