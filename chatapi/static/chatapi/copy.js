// The buttons that copy the text of the element that they name, and say so: on themselves, and to screen
// readers. The result stays until the focus leaves or something else is pressed: nobody has to read it in
// time, and the status is empty before the next copy, which a screen reader would not announce otherwise.

const status = document.querySelector("[data-announces]");
let restore = () => {};

// Without a secure origin there is no clipboard for scripts: then the text is selected, and copied as a
// person would.
async function copy(source) {
  try {
    await navigator.clipboard.writeText(source.value ?? source.textContent);
    return true;
  } catch {
    if (source.select) source.select();
    else getSelection().selectAllChildren(source);
    return document.execCommand("copy");
  }
}

function reset() {
  restore();
  restore = () => {};
}

document.addEventListener("click", async (event) => {
  reset();
  const button = event.target.closest("[data-copies]");
  if (!button) return;
  const isCopied = await copy(document.getElementById(button.dataset.copies));
  reset(); // of a press in the meantime
  const label = button.innerHTML;
  status.textContent = isCopied ? "Copied" : "Not copied: press Ctrl+C or ⌘C";
  if (isCopied) button.textContent = "Copied";
  restore = () => {
    button.innerHTML = label;
    status.textContent = "";
  };
});

document.addEventListener("focusout", reset);

// A click into the field, or a key that reaches it, selects its text.
document.addEventListener("focusin", (event) => {
  if (event.target.matches("input[readonly]")) event.target.select();
});
