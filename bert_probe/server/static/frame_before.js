// Replaces the two functions of require.js that BertViz uses, and the color scheme of d3.
(() => {
  /** @type {Record<string, unknown>} */
  const libraries = { jquery: window.jQuery, d3: window.d3 };
  /** @param {string[]} names @param {(...modules: unknown[]) => void} callback */
  const requirejs = (names, callback) => callback(...names.map((name) => libraries[name]));
  Object.assign(window, { requirejs, require: { config() {} } });
  /** @type {string[]} */
  const colors = JSON.parse(document.body.dataset.colors ?? "[]");
  if (colors.length) window.d3.schemeCategory10 = colors;
})();
