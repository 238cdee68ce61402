// Shows views in a self-contained page, which is opened from disk or in a frame and sends no requests.

import { element } from "./dom.js";

/**
 * A payload as `views/payload.py` embeds it: bytes in `planes`, deflated to `length` bytes, encoded in base 85.
 *
 * @typedef {[planes: number, length: number, text: string]} PackedPayload
 */

/**
 * The data of a page. A view that shows one layer at a time has a payload for each layer; `start` is the initial layer,
 * counted from 1.
 *
 * `key` identifies the view to an embedding page; "" if there is none.
 *
 * @typedef {{start: number, payloads: PackedPayload[], key: string}} PageData
 */

/** @typedef {(selection: Partial<import("./selection.js").Selection>) => void} SelectionListener */

/** @typedef {(component: import("./mount.js").Component<Uint8Array>) => unknown} Mount */

const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%,()*+-;.=/?@^_`{|}~";

/** Mounts a view that shows one layer at a time and reads other layers from the page. @param {Mount} mount */
export async function openPage(mount) {
  const { start, payloads, key } = readPageData();
  const fetchLayer = (/** @type {number} */ layer) => unpack(payloads[layer - 1]);
  const data = await fetchLayer(start);
  /** @type {SelectionListener} */
  let applySelection = () => {};
  const onSelectionRequest = (/** @type {SelectionListener} */ listener) => {
    applySelection = listener;
  };
  const setStateValue = (/** @type {string} */ name, /** @type {unknown} */ value) =>
    postToParent(key, { [name]: value });
  const show = () => mount({ parentElement: document, data, setStateValue, fetchLayer, onSelectionRequest });
  runOnThemeChange(show);
  if (key) listenToParent(key, show, (selection) => applySelection(selection));
}

/** Posts a message to the embedding page, such as a notebook. @param {string} key @param {object} message */
function postToParent(key, message) {
  if (key) window.parent.postMessage({ bertProbe: key, ...message }, "*");
}

/**
 * Applies the selections and themes that the embedding page sets, after announcing this page to it.
 *
 * @param {string} key @param {() => void} show @param {SelectionListener} applySelection
 */
function listenToParent(key, show, applySelection = () => {}) {
  window.addEventListener("message", ({ data, source }) => {
    if (source !== window.parent || data?.bertProbe !== key) return;
    if (data.theme) {
      document.documentElement.dataset.theme = data.theme;
      show();
    }
    if (data.selection) applySelection(data.selection);
    if (data.announce) postToParent(key, {});
  });
  postToParent(key, {});
}

/** Mounts a view for each payload, one below the other. @param {Mount} mount */
export async function openAll(mount) {
  const { payloads, key } = readPageData();
  const views = await Promise.all(payloads.map(unpack));
  const first = /** @type {HTMLElement} */ (document.querySelector("section"));
  const containers = views.map(() => element("div", {}, first.cloneNode()));
  first.replaceWith(...containers);
  const show = () =>
    views.forEach((data, i) => {
      mount({ parentElement: containers[i], data, setStateValue() {} });
    });
  runOnThemeChange(show);
  if (key) listenToParent(key, show);
}

/** @returns {PageData} */
function readPageData() {
  return JSON.parse(document.getElementById("payload")?.textContent ?? "");
}

/** Runs a function now, and whenever the system theme changes. @param {() => void} show */
function runOnThemeChange(show) {
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

/**
 * Returns a shadow root with the styles of a component, because components share class names. The page contains the
 * styles as a template.
 *
 * @param {string} component @param {string} name CSS class of the component's element
 */
export function createShadowRoot(component, name) {
  const host = element("div");
  const root = host.attachShadow({ mode: "open" });
  const style = /** @type {HTMLTemplateElement} */ (document.getElementById(`style-${component}`));
  root.append(style.content.cloneNode(true), element("section", { class: name }));
  return { host, root };
}

/** Returns the bytes of a payload that `views/payload.py` has packed. @param {PackedPayload} packed */
export async function unpack([planes, length, text]) {
  const inflate = new DecompressionStream("deflate-raw");
  const stream = new Blob([decodeBase85(text).subarray(0, length)]).stream().pipeThrough(inflate);
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (planes === 1) return bytes;
  const count = bytes.length / planes;
  const bytesInOrder = new Uint8Array(bytes.length);
  for (let plane = 0; plane < planes; plane++) {
    for (let i = 0; i < count; i++) bytesInOrder[i * planes + plane] = bytes[plane * count + i];
  }
  return bytesInOrder;
}

/** Decodes base 85: five characters represent four bytes, big-endian. @param {string} text */
function decodeBase85(text) {
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
