// The script of a report page: mounts several views, and saves their tables as CSV files. It also works when the page
// is opened from disk.

import { download } from "../core/export.js";
import { createShadowRoot, unpack } from "../core/page.js";
import mountHeadView from "../head_view/head_view.js";
import mountLayerMap from "../layer_map/layer_map.js";
import mountMatrix from "../matrix/matrix.js";
import mountModelView from "../model_view/model_view.js";
import { formatCsv } from "./csv.js";

/**
 * The properties of a view that this script uses; `reports/report.py` writes them.
 *
 * @typedef {object} View
 * @property {{component?: string, start: number}} picture
 * @property {import("../core/page.js").PackedPayload[]} payloads
 * @property {import("./csv.js").Table} table
 */

/** @type {Record<string, import("../core/page.js").Mount>} */
const MOUNTS = {
  matrix: mountMatrix,
  head_view: mountHeadView,
  layer_map: mountLayerMap,
  model_view: mountModelView,
};

/** The component that shows one payload (a layer) at a time. All other components show all payloads at once. */
const STEPPED = "head_view";

/** @type {{views: View[]}} */
const { views } = JSON.parse(document.getElementById("stated")?.textContent ?? "");

for (const container of document.querySelectorAll(".picture")) {
  mountView(/** @type {HTMLElement} */ (container));
}
for (const button of document.querySelectorAll("button[data-csv]")) {
  const index = Number(/** @type {HTMLElement} */ (button).dataset.csv);
  const name = `view-${index + 1}.csv`;
  button.addEventListener("click", () => {
    download(new Blob([formatCsv(views[index].table)], { type: "text/csv" }), name);
  });
}

/** @param {HTMLElement} container */
async function mountView(container) {
  const { picture, payloads } = views[Number(container.dataset.view)];
  const component = picture.component ?? "";
  const fetchLayer = (/** @type {number} */ layer) => unpack(payloads[layer - 1]);
  const datasets =
    component === STEPPED ? [await fetchLayer(picture.start)] : await Promise.all(payloads.map(unpack));
  const roots = datasets.map(() => createShadowRoot(component, container.dataset.class ?? ""));
  container.replaceChildren(...roots.map(({ host }) => host));
  const show = () =>
    datasets.forEach((data, i) => {
      MOUNTS[component]({ parentElement: roots[i].root, data, setStateValue() {}, fetchLayer });
    });
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}
