// Passes messages between a view's frame in a notebook and the kernel. The widget itself is invisible.

/**
 * The methods of an anywidget model that this module uses.
 *
 * @typedef {object} Model
 * @property {(name: string) => unknown} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, listener: () => void) => void} on
 */

/**
 * Listens to the frames of this view, and sends them the theme of the page and the selections that the kernel sets. A
 * frame has an opaque origin, so it can exchange only messages with the page.
 *
 * @param {{model: Model}} widget
 */
function initialize({ model }) {
  const key = model.get("key");
  /** @type {Set<Window>} */
  const frames = new Set();
  const postToFrames = (/** @type {object} */ message) => {
    for (const frame of frames) frame.postMessage({ bertProbe: key, ...message }, "*");
  };
  const readTheme = () => {
    const light = document.body.dataset.jpThemeLight; // JupyterLab and Notebook set this attribute.
    return light === undefined ? {} : { theme: light === "true" ? "light" : "dark" };
  };

  /** @param {MessageEvent} event */
  function listen({ data, source }) {
    if (data?.bertProbe !== key || !source) return;
    if (data.selection) {
      model.set("view", data.selection);
      model.save_changes();
    } else {
      frames.add(/** @type {Window} */ (source));
      postToFrames({ selection: model.get("wish"), ...readTheme() });
    }
  }

  const observer = new MutationObserver(() => postToFrames(readTheme()));
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  window.addEventListener("message", listen);
  // Ask frames that were mounted earlier to announce themselves again.
  for (let i = 0; i < window.frames.length; i++) {
    window.frames[i].postMessage({ bertProbe: key, announce: true }, "*");
  }
  model.on("change:wish", () => postToFrames({ selection: model.get("wish") }));
  return () => {
    window.removeEventListener("message", listen);
    observer.disconnect();
  };
}

export default { initialize };
