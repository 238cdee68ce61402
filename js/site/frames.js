// Adapts frames with exported views: they follow the theme of the site and are as high as their content.

/** Key of the messages; see `KEY` in `website/gallery.py`. */
const KEY = "site";

/** @param {HTMLIFrameElement} frame @param {object} message */
export function post(frame, message) {
  frame.contentWindow?.postMessage({ bertProbe: KEY, ...message }, "*");
}

/** @param {HTMLIFrameElement} frame */
function fit(frame) {
  const page = frame.contentDocument?.body; // null if the site is opened from files
  if (page) frame.style.height = `${Math.ceil(page.getBoundingClientRect().height) + 4}px`;
}

/** @param {HTMLIFrameElement} frame */
function connect(frame) {
  const { theme } = document.documentElement.dataset;
  if (theme) post(frame, { theme });
  const page = frame.contentDocument?.body;
  if (!page) return;
  fit(frame);
  const view = /** @type {Window & typeof globalThis} */ (frame.contentWindow);
  new view.ResizeObserver(() => fit(frame)).observe(page);
}

for (const frame of /** @type {NodeListOf<HTMLIFrameElement>} */ (
  document.querySelectorAll("iframe[data-view]")
)) {
  frame.addEventListener("load", () => connect(frame));
  if (frame.contentDocument?.readyState === "complete" && frame.contentDocument.body.childElementCount)
    connect(frame);
  document.addEventListener("themechange", () => {
    post(frame, { theme: document.documentElement.dataset.theme });
  });
}
