// Adds buttons that copy code blocks, and closes the navigation of the documentation on narrow screens.

for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll(".copy"))) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement?.querySelector("code")?.textContent ?? "");
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
}

if (matchMedia("(max-width: 900px)").matches) {
  document.querySelector("details.sections")?.removeAttribute("open");
}
