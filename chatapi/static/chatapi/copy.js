// The buttons that copy the text of the element that they name, and say so: on themselves, and to screen readers.

// Without a secure origin there is no clipboard for scripts: then the text is selected, and copied as a person would.
async function copy(source) {
  const text = source.value ?? source.textContent;
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    if (source.select) source.select();
    else getSelection().selectAllChildren(source);
    return document.execCommand("copy");
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copies]");
  if (!button || button.dataset.usual) return;
  const isCopied = await copy(document.getElementById(button.dataset.copies));
  document.getElementById("copied").textContent = isCopied ? "Copied" : "Not copied: press Ctrl+C or ⌘C";
  if (!isCopied) return;
  button.dataset.usual = button.innerHTML;
  button.textContent = "Copied";
  setTimeout(() => {
    button.innerHTML = button.dataset.usual;
    delete button.dataset.usual;
    document.getElementById("copied").textContent = "";
  }, 2000);
});

// A click into the field, or a key that reaches it, selects its text.
document.addEventListener("focusin", (event) => { if (event.target.matches("input[readonly]")) event.target.select(); });
