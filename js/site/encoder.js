// Runs the encoder in the browser with ONNX Runtime: in WebAssembly, or with WebGPU.

import * as gpuRuntime from "onnxruntime-web/jspi";
import * as wasmRuntime from "onnxruntime-web/wasm";
import { loadFiles } from "./download.js";
import { Tokenizer } from "./tokenizer.js";

/**
 * The manifest from `website/model_files.py`.
 *
 * @typedef {object} Manifest
 * @property {string} model
 * @property {import("./trace.js").Shape} shape
 * @property {number} maxTokens
 * @property {{runtime: Record<Backend, StoredFile>, graph: StoredFile, tokenizer: StoredFile, calibration: StoredFile,
 *   weights: StoredFile[]}} files
 * @property {{text: string, vector: number[], tolerance: number}} check a text, its sentence vector according to the library,
 *   and the largest difference that float16 weights explain
 * @property {string} weightsFile the name by which the graph refers to its weights
 * @property {number} weightsLength in bytes
 */

/** @typedef {import("./download.js").StoredFile} StoredFile */
/** @typedef {"wasm" | "webgpu"} Backend */
/** @typedef {import("./trace.js").Arrays} Arrays */
/** The result of a forward pass, without methods, so that a worker can send it. @typedef {{text: string, tokens: import("./tokenizer.js").Token[], arrays: Arrays, milliseconds: number}} Encoded */

/** The files of a manifest that a backend needs. @param {Manifest} manifest @param {Backend} backend */
export function listFiles({ files: { weights, ...others } }, backend) {
  return [others.tokenizer, others.calibration, others.graph, others.runtime[backend], ...weights];
}

/**
 * WebGPU if this browser has a graphics processor and can suspend WebAssembly, which the runtime for WebGPU needs.
 *
 * @returns {Promise<Backend>}
 */
export async function chooseBackend() {
  const { gpu } =
    /** @type {{gpu?: {requestAdapter(): Promise<{info?: {isFallbackAdapter?: boolean}} | null>}}} */ (
      navigator
    );
  if (!gpu || !("Suspending" in WebAssembly)) return "wasm";
  const adapter = await gpu.requestAdapter().catch(() => null);
  // A fallback adapter computes on the processor, more slowly than WebAssembly.
  return adapter && !adapter.info?.isFallbackAdapter ? "webgpu" : "wasm";
}

export class Encoder {
  /**
   * @param {Backend} backend
   * @param {wasmRuntime.InferenceSession} session
   * @param {Tokenizer} tokenizer
   * @param {Float32Array} calibration sorted cosines of random pairs of reference sentences
   * @param {number} maxTokens
   */
  constructor(backend, session, tokenizer, calibration, maxTokens) {
    this.backend = backend;
    this.session = session;
    this.tokenizer = tokenizer;
    this.calibration = calibration;
    this.maxTokens = maxTokens;
  }

  /**
   * Opens the model. Without a working and exact WebGPU, opens it in WebAssembly instead.
   *
   * @param {Manifest} manifest
   * @param {string} base URL of the manifest
   * @param {import("./download.js").OnProgress} onProgress
   * @param {Backend} backend
   * @returns {Promise<Encoder>}
   */
  static async load(manifest, base, onProgress, backend) {
    const contents = await loadFiles(listFiles(manifest, backend), base, onProgress);
    if (backend === "wasm") return Encoder.create(manifest, contents, backend);
    try {
      const encoder = await Encoder.create(manifest, contents, backend);
      const difference = await encoder.measureDifference(manifest);
      if (difference <= manifest.check.tolerance) return encoder;
      console.warn(`WebGPU is not used: its numbers differ by ${difference}.`);
    } catch (error) {
      console.warn("WebGPU is not used:", error);
    }
    return Encoder.load(manifest, base, onProgress, "wasm");
  }

  /** @param {Manifest} manifest @param {Uint8Array[]} contents @param {Backend} backend */
  static async create(manifest, contents, backend) {
    const [tokenizer, calibration, graph, runtime, ...weights] = contents;
    const ort = backend === "webgpu" ? gpuRuntime : wasmRuntime;
    // Several threads need a header that a plain static host does not send.
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmBinary = runtime.buffer;
    const session = await ort.InferenceSession.create(graph, {
      executionProviders: [backend],
      externalData: [{ path: manifest.weightsFile, data: joinPlanes(weights, manifest.weightsLength) }],
    });
    return new Encoder(
      backend,
      session,
      new Tokenizer(JSON.parse(new TextDecoder().decode(tokenizer))),
      new Float32Array(calibration.buffer),
      manifest.maxTokens,
    );
  }

  /** The largest difference between the sentence vector of a text and that of the library. @param {Manifest} manifest */
  async measureDifference({ check: { text, vector } }) {
    const { tokens, arrays } = await this.encode(text);
    const start = arrays.hidden.length - tokens.length * vector.length; // of the last layer
    const differences = vector.map((expected, dimension) => {
      const sum = tokens.reduce(
        (total, _, i) => total + arrays.hidden[start + i * vector.length + dimension],
        0,
      );
      return Math.abs(sum / tokens.length - expected);
    });
    return Math.max(...differences);
  }

  /**
   * The tokens of a text, and the arrays of a forward pass.
   *
   * @param {string} text
   * @returns {Promise<Encoded>}
   * @throws {RangeError} if the text has no tokens, or too many
   */
  async encode(text) {
    const tokens = this.tokenizer.encode(text);
    if (tokens.length === 2) throw new RangeError("This text has no tokens. Write at least one word.");
    if (tokens.length > this.maxTokens) {
      throw new RangeError(
        `${tokens.length} tokens, but this page reads at most ${this.maxTokens}. Shorten the text, or open it in the installed app.`,
      );
    }
    const start = performance.now();
    const { Tensor } = this.backend === "webgpu" ? gpuRuntime : wasmRuntime;
    const ids = BigInt64Array.from(tokens, ({ id }) => BigInt(id));
    const outputs = await this.session.run({
      ids: new Tensor("int64", ids, [ids.length]),
      segments: new Tensor("int64", new BigInt64Array(ids.length), [ids.length]),
    });
    const names = /** @type {const} */ (["hidden", "queries", "keys", "values"]);
    const arrays = /** @type {Arrays} */ (
      Object.fromEntries(names.map((name) => [name, outputs[name].data]))
    );
    return { text, tokens, arrays, milliseconds: performance.now() - start };
  }
}

/**
 * The weights in float16, from two planes that compress better: all low bytes, then all high bytes.
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
