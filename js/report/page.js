// A report, opened from disk: pictures of several views in one page, each in a place of its own, and tables as files.

import { element } from "../core/dom.js";
import { unpacked } from "../core/page.js";
import { offer } from "../core/saving.js";
import mountHeadView from "../head_view/head_view.js";
import mountLayerMap from "../layer_map/layer_map.js";
import mountMatrix from "../matrix/matrix.js";
import mountModelView from "../model_view/model_view.js";
import { csvOf } from "./csv.js";

/**
 * What a report states of a view, as far as it is drawn here; `reports/report.py` writes it.
 *
 * @typedef {object} View
 * @property {{component?: string, start: number}} picture
 * @property {import("../core/page.js").Packed[]} payloads
 * @property {import("./csv.js").Table} table
 */

/** @type {Record<string, import("../core/page.js").Mount>} */
const MOUNTS = {
  matrix: mountMatrix,
  head_view: mountHeadView,
  layer_map: mountLayerMap,
  model_view: mountModelView,
};

/** A view of one layer at a time has all of them at hand; of others each payload is a picture. */
const STEPPED = "head_view";

/** @type {{views: View[]}} */
const { views } = JSON.parse(document.getElementById("stated")?.textContent ?? "");

for (const place of document.querySelectorAll(".picture")) {
  draw(/** @type {HTMLElement} */ (place));
}
for (const button of document.querySelectorAll("button[data-csv]")) {
  const place = Number(/** @type {HTMLElement} */ (button).dataset.csv);
  const name = `view-${place + 1}.csv`;
  button.addEventListener("click", () => {
    offer(new Blob([csvOf(views[place].table)], { type: "text/csv" }), name);
  });
}

/** @param {HTMLElement} place */
async function draw(place) {
  const { picture, payloads } = views[Number(place.dataset.view)];
  const component = picture.component ?? "";
  const fetchLayer = (/** @type {number} */ layer) => unpacked(payloads[layer - 1]);
  const drawn =
    component === STEPPED ? [await fetchLayer(picture.start)] : await Promise.all(payloads.map(unpacked));
  const roots = drawn.map(() => rooted(component, place.dataset.class ?? ""));
  place.replaceChildren(...roots.map(({ host }) => host));
  const show = () =>
    drawn.forEach((data, i) => {
      MOUNTS[component]({ parentElement: roots[i].root, data, setStateValue() {}, fetchLayer });
    });
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

/**
 * A place with styles of its own, as components of several kinds name their parts alike.
 *
 * @param {string} component @param {string} name class of the element that it is mounted in
 */
function rooted(component, name) {
  const host = element("div");
  const root = host.attachShadow({ mode: "open" });
  const style = /** @type {HTMLTemplateElement} */ (document.getElementById(`style-${component}`));
  root.append(style.content.cloneNode(true), element("section", { class: name }));
  return { host, root };
}
