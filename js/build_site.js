// Builds the scripts of the static site in a given folder.

import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));

/** @type {import("esbuild").BuildOptions} */
const options = {
  absWorkingDir: here,
  outdir: process.argv[2],
  bundle: true,
  minify: true,
  target: "es2023",
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
};

await build({
  ...options,
  entryPoints: ["playground", "worker", "search", "frames", "landing", "code"].map((name) => ({
    in: `site/${name}.js`,
    out: name,
  })),
  format: "esm",
});

// This script sets the theme before the page is painted, so it cannot be a module, which would run later.
await build({ ...options, entryPoints: [{ in: "site/theme.js", out: "theme" }], format: "iife" });
