// The playground: texts are encoded in this browser, and shown by the views of the app.

import { createShadowRoot } from "../core/page.js";
import { formatNumber } from "../core/text.js";
import mountHeadView from "../head_view/head_view.js";
import mountMatrix from "../matrix/matrix.js";
import mountModelView from "../model_view/model_view.js";
import mountStrip from "../strip/strip.js";
import { HeadFinder } from "./find_heads.js";
import { findFirstHead, measureHeads } from "./heads.js";
import { createHistogram } from "./histogram.js";
import {
  createSelection,
  identify,
  packContributions,
  packCosines,
  packHeads,
  packThumbnails,
} from "./payloads.js";
import { compareSentences, compareTokens, getPercentile } from "./similarity.js";
import { Trace } from "./trace.js";

/** @typedef {"heads" | "model" | "find" | "tokens" | "similarity" | "sentences"} ViewName */
/**
 * The input that a view shows: one of the texts, or both as segments of one input.
 *
 * @typedef {"a" | "b" | "joined"} Side
 */
/** @typedef {import("../core/selection.js").VersionedSelection} VersionedSelection */
/** @typedef {import("./worker.js").Reply} Reply */

const APP = "http://127.0.0.1:8501";
const TYPING_PAUSE = 250; // milliseconds between the last key and a forward pass
const VIEWS = /** @type {const} */ (["heads", "model", "find", "tokens", "similarity", "sentences"]);

const SIDES = /** @type {const} */ (["a", "b", "joined"]);

/** The page of the installed app that shows a view. @type {Record<ViewName, string>} */
const APP_PAGES = {
  heads: "attention",
  model: "attention",
  find: "heads",
  tokens: "tokens",
  similarity: "similarity",
  sentences: "answer",
};

/** @param {string} id @returns {HTMLElement} */
function find(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no element ${id}.`);
  return found;
}

const form = /** @type {HTMLFormElement} */ (find("texts"));
const inputs = {
  a: /** @type {HTMLTextAreaElement} */ (find("text-a")),
  b: /** @type {HTMLTextAreaElement} */ (find("text-b")),
};
const button = /** @type {HTMLButtonElement} */ (find("run"));
const bar = /** @type {HTMLProgressElement} */ (find("progress"));
const layerInput = /** @type {HTMLInputElement} */ (find("layer"));
const palette = readPalette();
const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });

/** @type {import("./encoder.js").Manifest | null} */
let manifest = null;
let isLoaded = false;
/** @type {Float32Array} */
let calibration = new Float32Array();
/** @type {Record<Side, Trace | null>} */
let traces = { a: null, b: null, joined: null };
/** @type {ViewName} */
let view = "heads";
/** @type {Side} */
let side = "a";
/** @type {number | null} */
let layer = null; // layer whose token similarity is shown; null for the last layer
/** Token positions of the words in the URL between which heads are searched. @type {number[]} */
let initialWords = [];
let requestCount = 0;
let typingTimer = 0;
/** @type {Map<number, (reply: import("./worker.js").EncodedReply | import("./worker.js").ErrorReply) => void>} */
const waiting = new Map();
/** Cached traces of the latest texts. @type {Map<string, Trace>} */
const cache = new Map();
/** @type {VersionedSelection | null} */
let selection = null;

/** @returns {import("./payloads.js").Palette} */
function readPalette() {
  const encoded = JSON.parse(find("palette").textContent ?? "");
  const decode = (/** @type {{light: string, dark: string}} */ { light, dark }) => ({
    light: Uint8Array.from(atob(light), (letter) => letter.charCodeAt(0)),
    dark: Uint8Array.from(atob(dark), (letter) => letter.charCodeAt(0)),
  });
  return { sequential: decode(encoded.sequential), diverging: decode(encoded.diverging) };
}

// Loading of the model

worker.onmessage = ({ data }) => {
  const reply = /** @type {Reply} */ (data);
  if (reply.kind === "manifest") offerDownload(reply);
  else if (reply.kind === "progress") showProgress(reply.loaded, reply.total);
  else if (reply.kind === "loaded") finishLoading(reply.calibration);
  else if (reply.kind === "error" && reply.id === null) showLoadingError(reply.message);
  else {
    const id = reply.id ?? 0;
    waiting.get(id)?.(reply);
    waiting.delete(id);
  }
};
worker.onerror = () => showLoadingError("This browser cannot run the playground. Use a current version.");

/** @param {import("./worker.js").ManifestReply} reply */
function offerDownload({ manifest: received, bytes, isCached }) {
  manifest = received;
  const size = `${(bytes / 1e6).toFixed(1)} MB`;
  find("size").textContent = size;
  button.disabled = false;
  if (isCached) load();
  else button.textContent = `Download the model (${size}) and run`;
}

function load() {
  button.disabled = true;
  bar.hidden = false;
  setStatus("Opening the model …");
  worker.postMessage({ kind: "load" });
}

/** @param {number} loaded @param {number} total */
function showProgress(loaded, total) {
  bar.max = total;
  bar.value = loaded;
  const isDone = loaded === total;
  setStatus(
    isDone ? "Starting the model …" : `${(loaded / 1e6).toFixed(1)} of ${(total / 1e6).toFixed(1)} MB`,
  );
}

/** @param {Float32Array} scores */
function finishLoading(scores) {
  calibration = scores;
  isLoaded = true;
  bar.hidden = true;
  button.disabled = false;
  button.textContent = "Run";
  run();
}

/** @param {string} message */
function showLoadingError(message) {
  bar.hidden = true;
  button.disabled = false;
  button.textContent = "Try again";
  setStatus(message, true);
}

/** @param {string} text */
function setStatus(text, isError = false) {
  const status = find("status");
  status.textContent = text;
  status.classList.toggle("error", isError);
}

// Running the model

/** @param {string} text @param {string | null} pair @returns {Promise<Trace>} */
async function encode(text, pair = null) {
  const key = JSON.stringify([text, pair]);
  const known = cache.get(key);
  if (known) return known;
  const id = ++requestCount;
  const reply = await new Promise((resolve) => {
    waiting.set(id, resolve);
    worker.postMessage({ kind: "encode", id, text, pair });
  });
  if (reply.kind === "error") throw new RangeError(reply.message);
  if (!manifest) throw new Error("The model is not open.");
  const { tokens, arrays, milliseconds } = reply.encoded;
  const trace = new Trace(text, tokens, arrays, manifest.shape, pair);
  find("status").dataset.milliseconds = String(milliseconds);
  if (cache.size > 20) cache.clear();
  cache.set(key, trace);
  return trace;
}

let runCount = 0;

async function run() {
  if (!isLoaded) return;
  const current = ++runCount;
  const texts = { a: inputs.a.value, b: inputs.b.value };
  const start = performance.now();
  try {
    const a = await encode(texts.a);
    const b = texts.b.trim() ? await encode(texts.b) : null;
    if (!b) side = "a";
    const joined = b && side === "joined" ? await encode(texts.a, texts.b) : null;
    if (current !== runCount) return;
    traces = { a, b, joined };
    show();
    const counts = (joined ? [joined] : [a, b]).flatMap((trace) =>
      trace ? [`${trace.tokens.length} tokens`] : [],
    );
    setStatus(`${counts.join(" + ")} in ${Math.round(performance.now() - start)} ms, in this browser`);
    find("results").hidden = false;
    find("results").dataset.texts = JSON.stringify(texts);
    writeAddress();
  } catch (error) {
    if (current === runCount) setStatus(error instanceof Error ? error.message : String(error), true);
  }
}

// Displaying the results

const shown = /** @type {HTMLElement} */ (find("view"));
/** @type {Map<string, {host: HTMLElement, root: ShadowRoot}>} */
const roots = new Map();

/**
 * Returns the root of a component; it is created once, so that the component keeps its state.
 *
 * @param {string} id
 * @param {string} component
 * @param {string} name
 */
function getRoot(id, component, name) {
  let root = roots.get(id);
  if (!root) {
    root = createShadowRoot(component, name);
    roots.set(id, root);
  }
  return root;
}

/** Returns whether the view compares the two texts. */
function isComparison() {
  return view === "similarity" || view === "sentences";
}

/** @returns {Trace | null} */
function getTrace() {
  return traces[side] ?? traces.a;
}

function show() {
  const trace = getTrace();
  if (!trace) return;
  for (const name of VIEWS) {
    const tab = find(`tab-${name}`);
    tab.setAttribute("aria-selected", String(name === view));
    tab.tabIndex = name === view ? 0 : -1;
  }
  find("panel").setAttribute("aria-labelledby", `tab-${view}`);
  find("sides").hidden = isComparison() || !traces.b;
  for (const name of SIDES) {
    find(`side-${name}`).setAttribute("aria-pressed", String(name === side));
  }
  find("layers").hidden = view !== "similarity" || !traces.b;
  find("summary").replaceChildren();
  find("reference").replaceChildren();
  find("needs-pair").hidden = !isComparison() || Boolean(traces.b);
  for (const caveat of document.querySelectorAll("[data-caveat]")) {
    const { dataset } = /** @type {HTMLElement} */ (caveat);
    caveat.toggleAttribute("hidden", dataset.caveat !== view || (isComparison() && !traces.b));
  }
  shown.hidden = isComparison() && !traces.b;
  SHOW[view](trace);
  updateLinks();
}

/** @type {Record<ViewName, (trace: Trace) => void>} */
const SHOW = {
  heads: showHeads,
  model: showModel,
  find: showFind,
  tokens: showTokens,
  similarity: showSimilarity,
  sentences: showSentences,
};

/** @param {{host: HTMLElement, root: ShadowRoot}} root */
function place({ host, root }) {
  if (shown.firstChild !== host) shown.replaceChildren(host);
  return root;
}

/** Data for the payloads of the head view, which the component requests layer by layer. */
let headData = {
  trace: /** @type {Trace | null} */ (null),
  pack: (/** @type {number} */ _) => new Uint8Array(),
};

/** @param {Trace} trace */
function showHeads(trace) {
  if (headData.trace !== trace) {
    const measures = measureHeads(trace);
    const reason = findFirstHead(trace);
    if (selection?.of !== identify(trace)) {
      selection = reason ? createSelection(trace, reason.layer, [reason.head]) : createSelection(trace);
    }
    const model = manifest?.model ?? "";
    const pack = (/** @type {number} */ number) =>
      packHeads(trace, number, { model, measures, selection: selection ?? createSelection(trace), reason });
    headData = { trace, pack };
  }
  mountHeadView({
    parentElement: place(getRoot("heads", "head_view", "head-view")),
    data: headData.pack(selection?.value.layer ?? trace.layers),
    setStateValue: (_, report) => {
      selection = /** @type {VersionedSelection} */ (report);
      updateLinks();
    },
    fetchLayer,
  });
}

/**
 * Returns the payload of a layer. The component stores this function, so the function must stay the same when the data
 * changes.
 *
 * @param {number} number
 */
async function fetchLayer(number) {
  return headData.pack(number);
}

/** @param {Trace} trace */
function showModel(trace) {
  mountModelView({
    parentElement: place(getRoot("model", "model_view", "matrix model-view")),
    data: packThumbnails(trace, manifest?.model ?? "", palette),
    setStateValue() {},
    setTriggerValue: (_, opened) =>
      openHead(trace, /** @type {import("../model_view/model.js").HeadIndex} */ (opened)),
  });
}

/**
 * Opens a head in the head view.
 *
 * @param {Trace} trace
 * @param {import("../model_view/model.js").HeadIndex} opened
 * @param {Partial<import("../core/selection.js").Selection>} change
 */
function openHead(trace, opened, change = {}) {
  const revision = (selection?.revision ?? 0) + 1;
  const options = selection?.of === identify(trace) ? selection.value : createSelection(trace).value;
  selection = {
    revision,
    of: identify(trace),
    value: { ...options, layer: opened.layer + 1, heads: [opened.head], ...change },
  };
  select("heads");
}

const finder = new HeadFinder(
  (score) => {
    // A pinned word is identified by its index among the words, so the view must show words instead of tokens.
    const words = finder.trace ? finder.trace.words.length < finder.trace.tokens.length : false;
    if (finder.trace) openHead(finder.trace, score, { words, pins: { side: "query", units: [score.query] } });
  },
  () => {
    writeAddress();
    updateLinks();
  },
);

/** @param {Trace} trace */
function showFind(trace) {
  finder.show(trace, measureHeads(trace), initialWords);
  initialWords = [];
  if (shown.firstChild !== finder.host) shown.replaceChildren(finder.host);
  summarize(
    "Click two words to see which heads attend from one to the other, in both directions. Click a head to open it.",
  );
}

/** @param {Trace} trace */
function showTokens(trace) {
  mountStrip({
    parentElement: place(getRoot("tokens", "strip", "strip")),
    data: {
      key: "playground-tokens",
      of: identify(trace),
      digest: identify(trace),
      pieces: trace.tokens.map(({ text, id, word, segment, special }, position) => ({
        text,
        position,
        kind: special ? "special" : side === "b" || segment ? "B" : "A",
        joined: word !== null && word === trace.tokens[position - 1].word,
        detail: `position ${position}, id ${id}`,
        mark: "",
        number: "",
      })),
      label: "Tokens",
      row: false,
      selectable: false,
      revision: 0,
      selected: null,
    },
    setStateValue() {},
  });
  const count = trace.words.filter(({ special }) => !special).length;
  const pieces = trace.tokens.filter(({ special }) => !special).length;
  summarize(
    `${pieces} tokens for ${count} words and signs, and ${trace.tokens.length - pieces} special tokens. Point at a token for its id.`,
  );
}

/** @returns {[Trace, Trace] | null} */
function getPair() {
  return traces.a && traces.b ? [traces.a, traces.b] : null;
}

function showSimilarity() {
  const pair = getPair();
  if (!pair) return;
  const [a, b] = pair;
  const number = Math.min(layer ?? a.layers, a.layers);
  layerInput.max = String(a.layers);
  layerInput.value = String(number);
  find("layer-name").textContent = number ? `layer ${number}` : "embeddings";
  mountMatrix({
    parentElement: place(getRoot("similarity", "matrix", "matrix")),
    data: packCosines(pair, compareTokens(a, b, number), number, palette),
    setStateValue() {},
  });
}

function showSentences() {
  const pair = getPair();
  if (!pair) return;
  const { cosine, contributions } = compareSentences(...pair);
  const percentile = getPercentile(cosine, calibration);
  const share = percentile === 100 ? "100.0" : Math.min(percentile, 99.9).toFixed(1);
  const sum = contributions.reduce((total, value) => total + value, 0);
  mountMatrix({
    parentElement: place(getRoot("sentences", "matrix", "matrix")),
    data: packContributions(pair, contributions, palette),
    setStateValue() {},
  });
  const result = document.createElement("strong");
  result.id = "cosine";
  result.dataset.cosine = String(cosine);
  result.dataset.percentile = String(percentile);
  result.textContent = formatNumber(cosine, 4);
  const count = calibration.length.toLocaleString("en-US");
  const label = `Histogram of the cosines of ${count} random pairs of short English sentences, with a mark at ${formatNumber(cosine, 2)}`;
  find("reference").replaceChildren(createHistogram(calibration, cosine, label));
  find("summary").replaceChildren(
    "Cosine ",
    result,
    `, higher than that of ${share}% of ${calibration.length.toLocaleString("en-US")} random pairs of short English sentences. ` +
      `The ${contributions.length.toLocaleString("en-US")} cells add up to it (difference ${Math.abs(sum - cosine).toExponential(0)}).`,
  );
}

/** @param {string} text */
function summarize(text) {
  find("summary").textContent = text;
}

// Links to the current view

/** Writes the texts to the fragment of the URL, which a browser never sends to a server. */
function writeAddress() {
  const parameters = new URLSearchParams({ a: inputs.a.value });
  if (inputs.b.value.trim()) parameters.set("b", inputs.b.value);
  if (view !== "heads") parameters.set("view", view);
  if (side !== "a") parameters.set("of", side);
  if (view === "find" && finder.trace) parameters.set("words", finder.positions.join("-"));
  history.replaceState(null, "", `#${parameters}`);
}

function updateLinks() {
  const parameters = new URLSearchParams({ a: inputs.a.value });
  if (inputs.b.value.trim()) parameters.set("b", inputs.b.value);
  if (view === "model") parameters.set("show", "model");
  if (view === "find" && finder.trace) {
    parameters.set("heads_part", "find");
    parameters.set("find_pairs", finder.positions.join("-"));
  }
  if (side === "b" && ["heads", "model", "find"].includes(view)) parameters.set("of", "b");
  if (side === "joined" && !isComparison()) parameters.set("relation", "pair");
  if (view === "similarity" && layer !== null) parameters.set("vector_layer", String(layer));
  if (view === "heads" && selection) {
    const { layer: number, heads } = selection.value;
    parameters.set("layer", String(number));
    if (typeof heads[0] === "number") parameters.set("head", String(heads[0] + 1));
    if (heads.length > 1) parameters.set("heads", heads.map((head) => Number(head) + 1).join("."));
  }
  const link = /** @type {HTMLAnchorElement} */ (find("open-app"));
  link.href = `${APP}/${APP_PAGES[view]}?${parameters}`;
}

/** Reads the texts from the URL. */
function readAddress() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  const [a, b, name] = ["a", "b", "view"].map((key) => parameters.get(key));
  if (a !== null) [inputs.a.value, inputs.b.value] = [a, b ?? ""];
  view = VIEWS.find((known) => known === name) ?? view;
  side = SIDES.find((known) => known === parameters.get("of")) ?? "a";
  initialWords = (parameters.get("words") ?? "").split("-").map(Number);
}

// Event listeners

/** @param {ViewName} name */
function select(name) {
  view = name;
  show();
  writeAddress();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (isLoaded) run();
  else load();
});
for (const input of Object.values(inputs)) {
  input.addEventListener("input", () => {
    clearTimeout(typingTimer);
    typingTimer = window.setTimeout(run, TYPING_PAUSE);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}
for (const name of VIEWS) find(`tab-${name}`).addEventListener("click", () => select(name));
find("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = VIEWS[(VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length];
  select(next);
  find(`tab-${next}`).focus();
});
for (const name of SIDES) {
  find(`side-${name}`).addEventListener("click", () => {
    side = name;
    run();
  });
}
layerInput.addEventListener("input", () => {
  layer = Number(layerInput.value);
  show();
});
for (const example of document.querySelectorAll("[data-a]")) {
  example.addEventListener("click", () => {
    const { dataset } = /** @type {HTMLElement} */ (example);
    [inputs.a.value, inputs.b.value] = [dataset.a ?? "", dataset.b ?? ""];
    const name = VIEWS.find((known) => known === dataset.view);
    if (name) view = name;
    side = "a";
    if (isLoaded) run();
  });
}
document.addEventListener("themechange", show);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
window.addEventListener("hashchange", () => {
  readAddress();
  run();
});

readAddress();
worker.postMessage({ kind: "check" });
