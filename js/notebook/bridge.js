// Between a view in a notebook's frame and the kernel. It has no picture: the frame shows the same without it.

/**
 * What anywidget hands over, as far as it is used here.
 *
 * @typedef {object} Model
 * @property {(name: string) => any} get
 * @property {(name: string, value: unknown) => void} set
 * @property {() => void} save_changes
 * @property {(event: string, listener: () => void) => void} on
 */

/**
 * Listens to the frames of one view, which name its key, and tells them what the kernel wishes and whether the page
 * around them is dark. A frame has an origin of its own: messages are all that passes.
 *
 * @param {{model: Model}} given
 */
function initialize({ model }) {
  const key = model.get("key");
  /** @type {Set<Window>} */
  const frames = new Set();
  const tell = (/** @type {object} */ said) => {
    for (const frame of frames) frame.postMessage({ bertProbe: key, ...said }, "*");
  };
  const theme = () => {
    const light = document.body.dataset.jpThemeLight; // of JupyterLab and Notebook
    return light === undefined ? {} : { theme: light === "true" ? "light" : "dark" };
  };

  /** @param {MessageEvent} event */
  function listen({ data, source }) {
    if (data?.bertProbe !== key || !source) return;
    if (data.shown) {
      model.set("view", data.shown);
      model.save_changes();
    } else {
      frames.add(/** @type {Window} */ (source));
      tell({ wish: model.get("wish"), ...theme() });
    }
  }

  const watch = new MutationObserver(() => tell(theme()));
  watch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  window.addEventListener("message", listen);
  // A frame that was there before says again that it is.
  for (let i = 0; i < window.frames.length; i++) {
    window.frames[i].postMessage({ bertProbe: key, asked: true }, "*");
  }
  model.on("change:wish", () => tell({ wish: model.get("wish") }));
  return () => {
    window.removeEventListener("message", listen);
    watch.disconnect();
  };
}

export default { initialize };
