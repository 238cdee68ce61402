// BertViz counts layers, heads and tokens from 0.
// This script changes the visible labels, so that they count from 1. After each redraw by BertViz, observers change the
// labels again. Tokens are nested deeper than axis labels, so a token that is a number is not changed.
(() => {
  /** @type {WeakSet<Element>} */
  const processed = new WeakSet();
  /** @param {Element} element @param {() => void} action */
  const processOnce = (element, action) => {
    if (processed.has(element)) return;
    processed.add(element);
    action();
  };
  /** Adds a tooltip. @param {Element} element @param {string} text */
  const addTitle = (element, text) => {
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = text;
    element.append(title);
  };
  /** @param {string} id @param {string} label */
  const labelSelect = (id, label) => document.getElementById(id)?.setAttribute("aria-label", label);
  labelSelect("layer", "Layer");
  labelSelect("filter", "Attention between");
  for (const option of document.querySelectorAll("#layer option")) {
    option.textContent = String(Number(option.getAttribute("value")) + 1);
  }
  for (const option of document.querySelectorAll("#filter option")) {
    option.textContent = (option.textContent ?? "").replace("->", "→");
  }
  /** @param {string} index index from 0 */
  const fromOne = (index) => String(Number(index) + 1);
  /** @param {Element} label */
  const renumberLabel = (label) => {
    label.textContent = (label.textContent ?? "")
      .replace(/^\d+$/, fromOne)
      .replace(
        /^Layer (\d+), Head (\d+)$/,
        (_, layer, head) => `Layer ${fromOne(layer)}, Head ${fromOne(head)}`,
      );
  };
  /** @param {Element} text */
  const addTokenTitle = (text) => {
    const token = text.parentElement;
    const tokens = token?.parentElement?.children;
    if (!token || !tokens) return;
    const position = Array.from(tokens).indexOf(token) + 1;
    addTitle(token, `${text.textContent} (token ${position} of ${tokens.length})`);
  };
  /** @param {SVGSVGElement} svg */
  const processDrawing = (svg) => {
    const width = Number(svg.getAttribute("width"));
    if (width) svg.setAttribute("viewBox", `0 0 ${width} ${svg.getAttribute("height")}`);
    for (const label of svg.querySelectorAll(":scope > text")) processOnce(label, () => renumberLabel(label));
    for (const text of svg.querySelectorAll("g > text")) processOnce(text, () => addTokenTitle(text));
    if (width) return;
    svg.lastElementChild?.querySelectorAll("rect").forEach((square, head) => {
      processOnce(square, () => addTitle(square, `Head ${head + 1}`));
    });
  };
  const container = document.getElementById("vis");
  const observeDrawing = () => {
    const svg = container?.querySelector("svg");
    if (!svg) return;
    processDrawing(svg);
    new MutationObserver(() => processDrawing(svg)).observe(svg, { childList: true });
  };
  observeDrawing();
  if (container) new MutationObserver(observeDrawing).observe(container, { childList: true });
})();
