// A form that asks first: its button says what the second press does, and so does a page's announcement.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button?.dataset.really || button.dataset.isArmed) return;
  event.preventDefault();
  button.dataset.isArmed = "yes";
  button.textContent = button.dataset.really;
  const announcement = document.querySelector("[data-announces]");
  if (announcement) announcement.textContent = button.dataset.really;
});
