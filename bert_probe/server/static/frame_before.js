// All that BertViz needs of require.js, and the app's colours in place of d3's ten.
(() => {
  const libraries = { jquery: window.jQuery, d3: window.d3 };
  window.require = { config() {} };
  window.requirejs = (names, use) => use(...names.map((name) => libraries[name]));
  const colours = JSON.parse(document.body.dataset.colours);
  if (colours.length) window.d3.schemeCategory10 = colours;
})();
