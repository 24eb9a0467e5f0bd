// A form that asks first: its button says what the second press does, and so does a page's announcement. A
// person who goes on to something else is asked again.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button?.dataset.really || button.dataset.isArmed) return;
  event.preventDefault();
  const before = [...button.childNodes];
  button.dataset.isArmed = "yes";
  button.textContent = button.dataset.really;
  button.addEventListener("blur", () => {
    delete button.dataset.isArmed;
    button.replaceChildren(...before);
  }, { once: true });
  const announcement = document.querySelector("[data-announces]");
  if (announcement) announcement.textContent = button.dataset.really;
});
