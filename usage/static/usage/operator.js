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
