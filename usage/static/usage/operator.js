// A form that asks first: its button says what the second press does.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button?.dataset.really || button.dataset.isArmed) return;
  event.preventDefault();
  button.dataset.isArmed = "yes";
  button.textContent = button.dataset.really;
});

// The buttons that copy what they stand beside.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    return; // Without a secure origin there is no clipboard; the text can still be selected.
  }
  const icon = button.querySelector(".material-symbols-outlined");
  icon.textContent = "check";
  setTimeout(() => { icon.textContent = "content_copy"; }, 1500);
});
