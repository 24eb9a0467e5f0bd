// Buttons that copy the text of another element, and show the result on themselves and to screen readers.
//
// The result stays until the focus moves or something is clicked, so there is no time limit for reading it.
// The status is emptied before the next copy, because a screen reader announces only changes.

const status = document.querySelector("[data-announces]");
let restore = () => {};

// Without a secure origin, scripts have no clipboard: then the text is selected, and copied by a command.
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
  reset(); // the result of a click in the meantime
  const label = button.innerHTML;
  status.textContent = isCopied ? "Copied" : "Not copied: press Ctrl+C or ⌘C";
  if (isCopied) button.textContent = "Copied";
  restore = () => {
    button.innerHTML = label;
    status.textContent = "";
  };
});

document.addEventListener("focusout", reset);

// A read-only field selects its text when it gets the focus.
document.addEventListener("focusin", (event) => {
  if (event.target.matches("input[readonly]")) event.target.select();
});
