// Search in the documentation. The browser builds the index when the search is used for the first time.

import MiniSearch from "minisearch";

/** A section as `website/documents.py` writes it. @typedef {{id: number, url: string, page: string, title: string, text: string}} Section */

const MAX_RESULTS = 12;
const root = document.documentElement.dataset.root ?? "";
const input = /** @type {HTMLInputElement | null} */ (document.getElementById("search"));
const list = /** @type {HTMLElement | null} */ (document.getElementById("results"));

/** @type {Promise<MiniSearch<Section>> | null} */
let index = null;

async function createIndex() {
  const response = await fetch(`${root}docs/sections.json`);
  const search = new MiniSearch({
    fields: ["title", "page", "text"],
    storeFields: ["url", "page", "title", "text"],
    searchOptions: { boost: { title: 4, page: 2 }, prefix: true, fuzzy: 0.15, combineWith: "AND" },
  });
  search.addAll(await response.json());
  return search;
}

/** Returns the words around the first match. @param {string} text @param {string[]} terms */
function excerpt(text, terms) {
  const lower = text.toLowerCase();
  const places = terms.map((term) => lower.indexOf(term)).filter((place) => place >= 0);
  const near = places.length ? Math.max(0, Math.min(...places) - 60) : 0;
  const start = near ? text.indexOf(" ", near) + 1 : 0;
  const end = start + 160 < text.length ? text.lastIndexOf(" ", start + 160) : text.length;
  return `${start ? "… " : ""}${text.slice(start, end)}${end < text.length ? " …" : ""}`;
}

async function search() {
  if (!input || !list) return;
  const query = input.value.trim();
  if (!query) {
    list.hidden = true;
    return;
  }
  index ??= createIndex();
  const results = (await index).search(query).slice(0, MAX_RESULTS);
  if (query !== input.value.trim()) return;
  const items = results.map(({ url, page, title, text, terms }) => {
    const link = document.createElement("a");
    link.href = `${root}${url}`;
    const heading = document.createElement("strong");
    heading.textContent = title;
    const place = document.createElement("span");
    place.className = "quiet";
    place.textContent = title === page ? "" : ` ${page}`;
    const passage = document.createElement("p");
    passage.textContent = excerpt(text, terms);
    link.append(heading, place, passage);
    const item = document.createElement("li");
    item.append(link);
    return item;
  });
  if (!items.length) {
    const item = document.createElement("li");
    item.className = "quiet";
    item.textContent = `Nothing contains “${query}”. Try fewer or other words.`;
    items.push(item);
  }
  list.replaceChildren(...items);
  list.hidden = false;
}

input?.addEventListener("focus", () => {
  index ??= createIndex();
});
input?.addEventListener("input", search);
input?.addEventListener("keydown", (event) => {
  const links = list?.querySelectorAll("a") ?? [];
  if (event.key === "Escape" && list) list.hidden = true;
  else if (event.key === "Enter" && links.length) location.href = links[0].href;
  else if (event.key === "ArrowDown" && links.length) {
    event.preventDefault();
    links[0].focus();
  }
});
list?.addEventListener("keydown", (event) => {
  const links = [...list.querySelectorAll("a")];
  const place = links.indexOf(/** @type {HTMLAnchorElement} */ (document.activeElement));
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") input?.focus();
  if (!step) return;
  event.preventDefault();
  if (place + step < 0) input?.focus();
  else links[Math.min(place + step, links.length - 1)].focus();
});
document.addEventListener("click", (event) => {
  const target = /** @type {Node} */ (event.target);
  if (list && input && !list.contains(target) && target !== input) list.hidden = true;
});
document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key !== "/" || target.matches("input, textarea, select")) return;
  event.preventDefault();
  input?.focus();
});
