// Runs the encoder outside the page's thread, so that typing and scrolling stay smooth.

import { areCached, deleteOthers } from "./download.js";
import { Encoder, listFiles } from "./encoder.js";

/** @typedef {import("./encoder.js").Encoded} Encoded */ /** @typedef {import("./encoder.js").Manifest} Manifest */

/**
 * @typedef {{kind: "check"} | {kind: "load"} | {kind: "encode", id: number, text: string, pair?: string | null}} Request
 * @typedef {{kind: "manifest", manifest: Manifest, bytes: number, isCached: boolean}} ManifestReply
 * @typedef {{kind: "progress", loaded: number, total: number}} ProgressReply
 * @typedef {{kind: "loaded", calibration: Float32Array}} LoadedReply
 * @typedef {{kind: "encoded", id: number, encoded: Encoded}} EncodedReply
 * @typedef {{kind: "error", id: number | null, message: string}} ErrorReply
 * @typedef {ManifestReply | ProgressReply | LoadedReply | EncodedReply | ErrorReply} Reply
 */

const base = new URL("../playground/model/manifest.json", self.location.href).href;

/** @type {Promise<Manifest> | null} */
let manifest = null;
/** @type {Promise<Encoder> | null} */
let encoder = null;

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
  const files = listFiles(current);
  if (request.kind === "check") {
    const bytes = files.reduce((sum, file) => sum + file.bytes, 0);
    send({ kind: "manifest", manifest: current, bytes, isCached: await areCached(files, base) });
    return;
  }
  encoder ??= Encoder.load(current, base, (loaded, total) => send({ kind: "progress", loaded, total }));
  const loaded = await encoder;
  if (request.kind === "load") {
    send({ kind: "loaded", calibration: loaded.calibration });
    await deleteOthers(files, base);
    return;
  }
  const encoded = await loaded.encode(request.text, request.pair);
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
    if (request.kind !== "encode") [manifest, encoder] = [null, null]; // so that the page loads both again
    const message = error instanceof Error ? error.message : String(error);
    send({ kind: "error", id: request.kind === "encode" ? request.id : null, message });
  }
};
