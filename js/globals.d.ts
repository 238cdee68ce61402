// Globals of the libraries that BertViz draws with.

interface Window {
  jQuery: unknown;
  d3: { schemeCategory10: string[] };
}
