// BertViz counts from 0 and the app from 1, so the displayed numbers are changed, and no values. BertViz draws
// everything again on each change, hence the observers. Tokens are nested deeper than the axis labels, so a
// token that is a number is not changed.
(() => {
  const done = new WeakSet();
  const once = (element, act) => { if (!done.has(element)) { done.add(element); act(element); } };
  const describe = (element, text) => {
    const title = document.createElementNS("http://www.w3.org/2000/svg", "title");
    title.textContent = text;
    element.append(title);
  };
  const select = (id, name) => document.getElementById(id)?.setAttribute("aria-label", name);
  select("layer", "Layer");
  select("filter", "Attention between");
  for (const option of document.querySelectorAll("#layer option")) {
    option.textContent = String(Number(option.value) + 1);
  }
  for (const option of document.querySelectorAll("#filter option")) {
    option.textContent = option.textContent.replace("->", "→");
  }
  const label = (text) => {
    text.textContent = text.textContent
      .replace(/^\d+$/, (index) => String(Number(index) + 1))
      .replace(/^(Layer )(\d+)(, Head )(\d+)$/, (_, a, layer, b, head) => a + (+layer + 1) + b + (+head + 1));
  };
  const token = (text) => {
    const all = text.parentElement.parentElement.children;
    const place = Array.prototype.indexOf.call(all, text.parentElement) + 1;
    describe(text.parentElement, `${text.textContent} (token ${place} of ${all.length})`);
  };
  const dress = (svg) => {
    const width = Number(svg.getAttribute("width"));
    if (width) svg.setAttribute("viewBox", `0 0 ${width} ${svg.getAttribute("height")}`);
    for (const text of svg.querySelectorAll(":scope > text")) once(text, label);
    for (const text of svg.querySelectorAll("g > text")) once(text, token);
    if (!width) {
      svg.lastElementChild.querySelectorAll("rect").forEach((square, head) => {
        once(square, () => describe(square, `Head ${head + 1}`));
      });
    }
  };
  const vis = document.getElementById("vis");
  const watch = () => {
    const svg = vis.querySelector("svg");
    dress(svg);
    new MutationObserver(() => dress(svg)).observe(svg, { childList: true });
  };
  watch();
  new MutationObserver(watch).observe(vis, { childList: true });
})();
