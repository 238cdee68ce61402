// The switch between the light and the dark theme, on every page of the site.

const KEY = "bert-probe-theme";

/** @returns {"light" | "dark"} */
function getTheme() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen === "light" || chosen === "dark") return chosen;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

const stored = (() => {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // Ignore the error if storage is disabled.
  }
})();
if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;

document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  button?.addEventListener("click", () => {
    const next = getTheme() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // Without storage, the choice lasts until the page is closed.
    }
    document.dispatchEvent(new Event("themechange"));
  });
});
