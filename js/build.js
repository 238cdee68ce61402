// Builds a module and a style sheet for each component. The folder is an argument; by default, it is the folder `built`
// of the Python package.

import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const NOTE = "Built by js/build.js. Do not edit: the next build overwrites this file.";
const folder = process.argv[2] ?? `${here}../bert_probe/views/built`;

/** @type {import("esbuild").BuildOptions} */
const options = {
  absWorkingDir: here,
  outdir: folder,
  bundle: true,
  minify: true,
  target: "es2023",
  charset: "utf8",
  legalComments: "none",
  banner: { js: `// ${NOTE}`, css: `/* ${NOTE} */` },
  logLevel: "warning",
};

await build({
  ...options,
  entryPoints: ["matrix", "head_view", "model_view", "layer_map", "strip", "toolbar"].flatMap((name) => [
    { in: `${name}/${name}.js`, out: name },
    { in: `${name}/${name}.css`, out: name },
  ]),
  format: "esm",
});

await build({ ...options, entryPoints: [{ in: "notebook/bridge.js", out: "bridge" }], format: "esm" });

// Builds the bundle for the JavaScript engine embedded in Python, which lacks browser APIs; see `shims.js`.
await build({
  ...options,
  entryPoints: [{ in: "files.js", out: "files" }],
  inject: ["shims.js"],
  format: "iife",
  globalName: "files",
});

// Builds the scripts of self-contained pages, which mount their views when they are loaded.
await build({
  ...options,
  entryPoints: ["matrix", "head_view", "model_view", "layer_map", "report"].map((name) => ({
    in: `${name}/page.js`,
    out: `${name}_page`,
  })),
  format: "iife",
});
