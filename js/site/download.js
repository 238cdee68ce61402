// Downloads the files of the playground: compressed, checked against their digests, and stored in the browser's cache.

/**
 * A file as `website/model_files.py` writes it.
 *
 * @typedef {object} StoredFile
 * @property {string} path path relative to the manifest; the file name contains a part of the digest
 * @property {number} bytes size of the compressed file
 * @property {number} length size of the content
 * @property {string} sha256 digest of the compressed file
 */

/** @typedef {(loaded: number, total: number) => void} OnProgress called with the loaded and the total bytes */

const CACHE = "bert-probe-playground";

/** Opens the browser's cache. Returns null on insecure origins, for which browsers provide no cache. */
function openCache() {
  return "caches" in globalThis ? caches.open(CACHE).catch(() => null) : null;
}

/** Returns whether all files are in the cache. @param {StoredFile[]} files @param {string} base */
export async function areCached(files, base) {
  const cache = await openCache();
  if (!cache) return false;
  const hits = await Promise.all(files.map(({ path }) => cache.match(new URL(path, base))));
  return hits.every(Boolean);
}

/** Deletes files of earlier versions. @param {StoredFile[]} files @param {string} base */
export async function deleteOthers(files, base) {
  const cache = await openCache();
  if (!cache) return;
  const current = new Set(files.map(({ path }) => new URL(path, base).href));
  for (const { url } of await cache.keys()) {
    if (url.startsWith(new URL(".", base).href) && !current.has(url)) await cache.delete(url);
  }
}

/**
 * Returns the contents of files, in the order of the files.
 *
 * @param {StoredFile[]} files
 * @param {string} base URL of the manifest
 * @param {OnProgress} onProgress
 */
export async function loadFiles(files, base, onProgress) {
  const cache = await openCache();
  const total = files.reduce((sum, { bytes }) => sum + bytes, 0);
  let loaded = 0;
  const onBytes = (/** @type {number} */ count) => {
    loaded += count;
    onProgress(loaded, total);
  };
  /** @type {Uint8Array[]} */
  const contents = [];
  // Load the files one after the other, so that the bytes of only one file are held in two forms.
  for (const file of files) contents.push(await loadFile(file, new URL(file.path, base), cache, onBytes));
  return contents;
}

/**
 * @param {StoredFile} file
 * @param {URL} url
 * @param {Cache | null} cache
 * @param {(count: number) => void} onBytes
 */
async function loadFile(file, url, cache, onBytes) {
  const cached = await cache?.match(url);
  const response = cached ?? (await fetch(url));
  if (!response.ok || !response.body)
    throw new Error(`${file.path} was not found on this site (${response.status}).`);
  const bytes = await readBytes(response.body, file.bytes, onBytes);
  await checkDigest(bytes, file);
  if (cache && !cached) {
    // Ignore errors: if the cache is full, the file is downloaded again next time.
    await cache.put(url, new Response(bytes)).catch(() => {});
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** @param {ReadableStream<Uint8Array>} stream @param {number} length @param {(count: number) => void} onBytes */
async function readBytes(stream, length, onBytes) {
  const bytes = new Uint8Array(length);
  const reader = stream.getReader();
  let offset = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (offset + value.length > length)
      throw new Error("A file of the model is larger than its manifest states.");
    bytes.set(value, offset);
    offset += value.length;
    onBytes(value.length);
  }
  return bytes.subarray(0, offset);
}

/** @param {Uint8Array<ArrayBuffer>} bytes @param {StoredFile} file */
async function checkDigest(bytes, file) {
  const { subtle } = globalThis.crypto;
  if (!subtle) return; // The browser has no `crypto.subtle` on an insecure origin other than localhost.
  const digest = new Uint8Array(await subtle.digest("SHA-256", bytes));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (hex !== file.sha256) throw new Error(`${file.path} arrived damaged. Reload the page to try again.`);
}
