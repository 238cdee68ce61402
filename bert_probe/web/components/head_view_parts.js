// The component's elements and sentences. User text only ever arrives as text, never as markup.

const HELP =
  "Arrow keys move between tokens and sides. Enter pins a token, Escape lets go. " +
  "Square brackets go to another layer, comma and full stop to another head.";

function buildHeadParts(root) {
  const parts = {
    layer: element("div", { class: "layer", role: "spinbutton", tabindex: "0", "aria-label": "Layer" }),
    down: button("Layer before", "‹"),
    up: button("Next layer", "›"),
    chips: element("div", { class: "chips", role: "group", "aria-label": "Heads: click for one, shift-click for several" }),
    note: element("p", { class: "note" }),
    layouts: segmented("Layout", { columns: "Columns", reading: "Reading" }),
    directions: segmented("Attention between the texts", { all: "Any", AA: "A→A", AB: "A→B", BA: "B→A", BB: "B→B" }),
    specials: button("Show [CLS], [SEP] and the like", "Special tokens"),
    fit: button("Show the whole text at once", "Fit"),
    threshold: element("input", { type: "range", min: "-1", max: String(STEPS.length - 1), step: "1", "aria-label": "Lines drawn from" }),
    thresholdText: element("span", { class: "threshold-text" }),
    png: button("Save the picture as PNG", "PNG"),
    svg: button("Save the picture as SVG", "SVG"),
    readout: element("p", { class: "readout" }),
    second: element("p", { class: "second" }),
    base: element("canvas", { class: "base", "aria-hidden": "true" }),
    stage: element("canvas", { class: "marks", tabindex: "0", role: "application", "aria-describedby": "help" }),
    share: element("p", { class: "share" }),
    table: element("table"),
    live: element("p", { class: "unseen", "aria-live": "polite" }),
  };
  parts.sticky = element("div", { class: "sticky" }, parts.base, parts.stage);
  parts.extent = element("div", { class: "extent" }, parts.sticky);
  parts.scroll = element("div", { class: "scroll" }, parts.extent);
  parts.details = element("details", {}, element("summary", {}, "These weights as a table"), element("div", { class: "table" }, parts.table));
  const stepper = element("div", { class: "group stepper" }, parts.down, parts.layer, parts.up);
  const threshold = element("label", { class: "threshold" }, parts.thresholdText, parts.threshold);
  const shown = element("div", { class: "group", role: "group", "aria-label": "What is shown" }, parts.specials, parts.fit);
  const save = element("div", { class: "group", role: "group", "aria-label": "Save" }, parts.png, parts.svg);
  root.replaceChildren(
    element("div", { class: "bar" }, stepper, parts.chips),
    parts.note,
    element("div", { class: "bar tools" }, parts.layouts, parts.directions, shown, threshold, save),
    element("div", { class: "lines" }, parts.readout, parts.second),
    parts.scroll,
    parts.share,
    parts.details,
    parts.live,
    element("p", { class: "unseen", id: "help" }, HELP),
  );
  return parts;
}

/** Buttons of which one is pressed; `data-value` says which. */
function segmented(label, options) {
  const buttons = Object.entries(options).map(([value, text]) => element("button", { type: "button", "data-value": value }, text));
  return element("div", { class: "group", role: "group", "aria-label": label }, ...buttons);
}

function press(group, value) {
  for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === value));
}

/** A chip a head, in its colour, and one for the mean. */
function headChips(model) {
  const mean = element("button", { type: "button", class: "chip mean", "data-head": MEAN, title: "Mean over all heads" }, "Mean");
  const heads = model.heads.map((head, i) => {
    const label = model.headLabels[i];
    const title = `Head ${head + 1}${label ? `: ${label}` : ""} (shift-click: add or remove)`;
    const chip = element("button", { type: "button", class: "chip", "data-head": String(i), title, "aria-label": title });
    chip.style.setProperty("--head", model.colours[head % model.colours.length]);
    chip.append(element("span", { class: "dot" }), String(head + 1));
    chip.classList.toggle("labelled", Boolean(label));
    return chip;
  });
  const all = element("button", { type: "button", class: "chip all", "data-head": "all", title: "All heads at once", "aria-label": "All heads" }, "All");
  return model.rolled ? [] : [mean, ...heads, all];
}

/** "ground (11) looks at: left (9) 0.6486 · we (7) 0.1200 · 12 others 0.2314" */
function rowNodes(model, side, units, mean, targets, several) {
  const notes = [units.length > 1 ? "added up" : "", several ? "mean over the heads shown" : ""].filter(Boolean).join(", ");
  const names = units.length > 3 ? `${units.length} tokens` : units.map((unit) => unitName(model, unit)).join(" + ");
  const verb = side === "query" ? (units.length > 1 ? "look at" : "looks at") : units.length > 1 ? "are looked at by" : "is looked at by";
  const ranked = [...targets].sort((one, other) => mean[other] - mean[one]);
  const best = ranked.slice(0, 4).map((unit) => [unitName(model, unit), mean[unit]]);
  const rest = mean.reduce((sum, weight) => sum + weight, 0) - best.reduce((sum, [, weight]) => sum + weight, 0);
  const others = model.units.length - best.length;
  const parts = [...best, ...(others > 0 ? [[others === 1 ? "1 other" : `${others} others`, rest]] : [])];
  return [
    element("b", {}, element("bdi", {}, names)),
    ` ${verb} `,
    ...parts.flatMap(([name, weight], i) => [
      i ? " · " : "",
      element("bdi", {}, name),
      element("span", { class: "value" }, ` ${formatted(weight, 4)}`),
    ]),
    notes ? element("span", { class: "quiet" }, `  (${notes})`) : "",
  ];
}

function weightsTable(model, side, units, series, weights, targets) {
  const names = series.map((head) => (head === MEAN ? "Mean" : `Head ${model.heads[head] + 1}`));
  if (series.length > 1) names.push("Mean of these");
  const caption = `${model.valueName}, layer ${model.layer}: ${side === "query" ? "from" : "to"} ${units.map((unit) => unitName(model, unit)).join(" + ")}`;
  const cells = (tag, texts, more = {}) => element("tr", {}, ...texts.map((text) => element(tag, more, text)));
  const rows = targets.map((unit) => {
    const numbers = weights.parts.map((part) => formatted(part[unit], 4));
    if (series.length > 1) numbers.push(formatted(weights.mean[unit], 4));
    const name = element("th", { scope: "row" }, element("bdi", {}, unitName(model, unit)));
    return element("tr", {}, name, ...numbers.map((text) => element("td", {}, text)));
  });
  return [
    element("caption", {}, caption),
    element("thead", {}, cells("th", [side === "query" ? "Key" : "Query", ...names], { scope: "col" })),
    element("tbody", {}, ...rows),
  ];
}

/** What the lines stand for, with the share of attention that they carry. */
function shareSentence(model, drawn, count, whole) {
  const percent = (share) => `${formatted(100 * share, share > 0.9995 || share === 0 ? 0 : 1)} %`;
  const whose = whole ? `all ${model.total}` : `the ${model.total} of the ${count} tokens in view`;
  const from = drawn.least > 0 ? ` of at least ${plainNumber(drawn.least)}` : "";
  const lines = drawn.lines.length === 1 ? "1 line" : `${drawn.lines.length.toLocaleString("en")} lines`;
  const capped = drawn.capped ? ` More than ${MOST_LINES.toLocaleString("en")} cannot be drawn; the weakest are left out.` : "";
  return `${lines}${from}, carrying ${percent(drawn.share)} of ${whose}.${capped}`;
}

function plainNumber(value) {
  return String(Number(value.toPrecision(2)));
}
