// Runs the encoder outside the page's thread, so that typing and scrolling stay smooth.

import { areCached, deleteOthers } from "./download.js";
import { chooseBackend, Encoder, listFiles } from "./encoder.js";

/** @typedef {import("./encoder.js").Backend} Backend */
/** @typedef {import("./encoder.js").Encoded} Encoded */
/** @typedef {import("./encoder.js").Manifest} Manifest */

/**
 * @typedef {{kind: "check", backend?: Backend} | {kind: "load", backend?: Backend} | {kind: "encode", id: number, text: string}}
 *   Request the backend is chosen by default
 * @typedef {{kind: "manifest", manifest: Manifest, bytes: number, isCached: boolean}} ManifestReply
 * @typedef {{kind: "progress", loaded: number, total: number}} ProgressReply
 * @typedef {{kind: "loaded", calibration: Float32Array, backend: Backend}} LoadedReply
 * @typedef {{kind: "encoded", id: number, encoded: Encoded}} EncodedReply
 * @typedef {{kind: "error", id: number | null, message: string}} ErrorReply
 * @typedef {ManifestReply | ProgressReply | LoadedReply | EncodedReply | ErrorReply} Reply
 */

const base = new URL("../playground/model/manifest.json", self.location.href).href;

/** @type {Promise<Manifest> | null} */
let manifest = null;
/** @type {Promise<Encoder> | null} */
let encoder = null;
const defaultBackend = chooseBackend();

async function fetchManifest() {
  const response = await fetch(base);
  if (!response.ok) throw new Error(`The list of the model's files was not found (${response.status}).`);
  return response.json();
}

/** @param {Reply} reply @param {Transferable[]} transfer */
function send(reply, transfer = []) {
  self.postMessage(reply, { transfer });
}

/** @param {Request} request */
async function answer(request) {
  manifest ??= fetchManifest();
  const { ...current } = await manifest;
  if (request.kind === "check") {
    const files = listFiles(current, request.backend ?? (await defaultBackend));
    const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
    send({ kind: "manifest", manifest: current, bytes, isCached: await areCached(files, base) });
    return;
  }
  const onProgress = (/** @type {number} */ loaded, /** @type {number} */ total) =>
    send({ kind: "progress", loaded, total });
  if (request.kind === "load") {
    const preferred = request.backend ?? (await defaultBackend);
    encoder ??= Encoder.load(current, base, onProgress, preferred);
    const { calibration, backend } = await encoder;
    send({ kind: "loaded", calibration, backend });
    await deleteOthers([...listFiles(current, "wasm"), ...listFiles(current, "webgpu")], base);
    return;
  }
  if (!encoder) throw new Error("The model is not open.");
  const loaded = await encoder;
  const encoded = await loaded.encode(request.text);
  send(
    { kind: "encoded", id: request.id, encoded },
    Object.values(encoded.arrays).map((array) => array.buffer),
  );
}

self.onmessage = async ({ data }) => {
  const request = /** @type {Request} */ (data);
  try {
    await answer(request);
  } catch (error) {
    if (request.kind !== "encode") [manifest, encoder] = [null, null]; // so that it can be tried again
    const message = error instanceof Error ? error.message : String(error);
    send({ kind: "error", id: request.kind === "encode" ? request.id : null, message });
  }
};
