// Shared by both components: they must show the same token alike.

/** A token as something that can be seen: control characters and lone spaces get a symbol. */
function visibleText(text) {
  if (text.trim() === "") return text === "" ? "∅" : "␣";
  return text
    .replace(/\r?\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}
