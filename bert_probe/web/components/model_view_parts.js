// The model view's elements. User text only ever arrives as text, never as markup.

const PREVIEW_SIDE = 224;

function buildGridParts(root) {
  const parts = {
    readout: element("p", { class: "readout" }),
    measure: element("select", { "aria-label": "Sort by" }),
    byHead: button("Sort the heads within each layer", "Heads"),
    byLayer: button("Sort the layers by the mean of their heads", "Layers"),
    png: button("Save the picture as PNG", "PNG"),
    svg: button("Save the picture as SVG", "SVG"),
    grid: element("canvas", { class: "grid", tabindex: "0", role: "application", "aria-describedby": "help" }),
    outline: element("div", { class: "outline", "aria-hidden": "true", hidden: "" }),
    bar: element("canvas", { "aria-hidden": "true" }),
    ticks: element("div", { class: "ticks" }),
    legendText: element("p", { class: "legend-text" }),
    blocks: element("p", { class: "legend-text" }),
    labelled: element("p", { class: "legend-text labelled" }, "this head has a label"),
    live: element("p", { class: "unseen", "aria-live": "polite" }),
    help: element("p", { class: "unseen", id: "help" }, "Arrow keys move between heads; Enter opens one in the head view."),
    preview: buildPreview(),
  };
  const sorting = element("div", { class: "group", role: "group", "aria-label": "What is sorted" }, parts.byHead, parts.byLayer);
  const saving = element("div", { class: "group", role: "group", "aria-label": "Save" }, parts.png, parts.svg);
  const sort = element("label", { class: "sort" }, "Sort by", parts.measure);
  root.replaceChildren(
    element("div", { class: "head" }, element("div", { class: "tools" }, sort, sorting), element("div", { class: "tools" }, saving)),
    parts.readout,
    element("div", { class: "stage" }, parts.grid, parts.outline),
    element(
      "div",
      { class: "legend" },
      element("div", { class: "words" }, parts.legendText, parts.blocks, parts.labelled),
      element("div", { class: "scale" }, parts.bar, parts.ticks),
    ),
    parts.live,
    parts.help,
    parts.preview.root,
  );
  return parts;
}

/** One head, larger, in the browser's top layer where nothing can clip it. */
function buildPreview() {
  const title = element("p", { class: "preview-title" });
  const detail = element("p", { class: "preview-detail" });
  const axes = element("p", { class: "preview-axes" }, "query ↓ · key →");
  const canvas = element("canvas");
  const root = element("div", { class: "preview", popover: "manual", "aria-hidden": "true" }, title, detail, axes, canvas);
  return { root, title, detail, canvas };
}

/** Beside an outline, on the side with room; null where a window is too narrow for it. */
function previewPlace(outline, box) {
  const [right, left] = [outline.right + 12, outline.left - box.width - 12];
  const x = right + box.width <= window.innerWidth - 8 ? right : left;
  if (x < 8) return null;
  const middle = (outline.top + outline.bottom - box.height) / 2;
  return { x, y: Math.max(8, Math.min(middle, window.innerHeight - box.height - 8)) };
}
