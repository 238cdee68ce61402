// Runs the encoder in the browser with ONNX Runtime.

import * as ort from "onnxruntime-web/wasm";
import { loadFiles } from "./download.js";
import { Tokenizer } from "./tokenizer.js";

/**
 * The manifest from `website/model_files.py`.
 *
 * @typedef {object} Manifest
 * @property {string} model
 * @property {import("./trace.js").Shape} shape
 * @property {number} maxTokens
 * @property {{runtime: StoredFile, graph: StoredFile, tokenizer: StoredFile, calibration: StoredFile, weights: StoredFile[]}}
 *   files
 * @property {string} weightsFile the name by which the graph refers to its weights
 * @property {number} weightsLength in bytes
 */

/** @typedef {import("./download.js").StoredFile} StoredFile */ /** @typedef {import("./trace.js").Arrays} Arrays */
/**
 * The result of a forward pass, without methods, so that a worker can send it.
 *
 * @typedef {{tokens: import("./tokenizer.js").Token[], arrays: Arrays, milliseconds: number}} Encoded
 */

/** All files of a manifest. @param {Manifest} manifest */
export function listFiles({ files: { weights, ...others } }) {
  return [others.tokenizer, others.calibration, others.graph, others.runtime, ...weights];
}

export class Encoder {
  /**
   * @param {ort.InferenceSession} session
   * @param {Tokenizer} tokenizer
   * @param {Float32Array} calibration sorted cosines of random pairs of reference sentences
   * @param {number} maxTokens
   */
  constructor(session, tokenizer, calibration, maxTokens) {
    this.session = session;
    this.tokenizer = tokenizer;
    this.calibration = calibration;
    this.maxTokens = maxTokens;
  }

  /**
   * @param {Manifest} manifest
   * @param {string} base URL of the manifest
   * @param {import("./download.js").OnProgress} onProgress
   */
  static async load(manifest, base, onProgress) {
    const [tokenizer, calibration, graph, runtime, ...weights] = await loadFiles(
      listFiles(manifest),
      base,
      onProgress,
    );
    // Use a single thread, because several threads require an HTTP header that static hosts do not send.
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = runtime.buffer;
    const session = await ort.InferenceSession.create(graph, {
      executionProviders: ["wasm"],
      externalData: [{ path: manifest.weightsFile, data: joinPlanes(weights, manifest.weightsLength) }],
    });
    return new Encoder(
      session,
      new Tokenizer(JSON.parse(new TextDecoder().decode(tokenizer))),
      new Float32Array(calibration.buffer),
      manifest.maxTokens,
    );
  }

  /**
   * Returns the tokens of a text or of a pair of texts, and the arrays of a forward pass.
   *
   * @param {string} text
   * @param {string | null} pair
   * @returns {Promise<Encoded>}
   * @throws {RangeError} if the text has no tokens, or too many
   */
  async encode(text, pair = null) {
    const tokens = this.tokenizer.encode(text, pair);
    if (tokens.every(({ special }) => special))
      throw new RangeError("This text has no tokens. Write at least one word.");
    if (tokens.length > this.maxTokens) {
      throw new RangeError(
        `${tokens.length} tokens, but this page reads at most ${this.maxTokens}. Shorten the text, or open it in the installed app.`,
      );
    }
    const start = performance.now();
    const ids = BigInt64Array.from(tokens, ({ id }) => BigInt(id));
    const segments = BigInt64Array.from(tokens, ({ segment }) => BigInt(segment));
    const outputs = await this.session.run({
      ids: new ort.Tensor("int64", ids, [ids.length]),
      segments: new ort.Tensor("int64", segments, [ids.length]),
    });
    const names = /** @type {const} */ (["hidden", "queries", "keys", "values"]);
    const arrays = /** @type {Arrays} */ (
      Object.fromEntries(names.map((name) => [name, outputs[name].data]))
    );
    return { tokens, arrays, milliseconds: performance.now() - start };
  }
}

/**
 * Joins the float16 weights from two planes: all low bytes, and all high bytes. Separate planes compress better.
 *
 * @param {Uint8Array[]} parts
 * @param {number} length
 */
function joinPlanes(parts, length) {
  const weights = new Uint8Array(length);
  const count = length / 2;
  let index = 0;
  for (const part of parts) {
    for (const byte of part) {
      weights[index < count ? 2 * index : 2 * (index - count) + 1] = byte;
      index++;
    }
  }
  if (index !== length)
    throw new Error("The weights of the model are incomplete. Reload the page to try again.");
  return weights;
}
