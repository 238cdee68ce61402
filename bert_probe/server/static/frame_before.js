// The part of require.js that BertViz uses, and the app's colors instead of d3's.
(() => {
  const libraries = { jquery: window.jQuery, d3: window.d3 };
  window.require = { config() {} };
  window.requirejs = (names, use) => use(...names.map((name) => libraries[name]));
  const colors = JSON.parse(document.body.dataset.colors);
  if (colors.length) window.d3.schemeCategory10 = colors;
})();
