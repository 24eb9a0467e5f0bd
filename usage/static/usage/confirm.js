// A form that asks first: its button says what the second press does, and so does a page's announcement. A
// person who goes on to something else is asked again.
document.addEventListener("submit", (event) => {
  const button = event.submitter;
  if (!button?.dataset.really || button.dataset.isArmed) return;
  event.preventDefault();
  const before = [...button.childNodes];
  button.dataset.isArmed = "yes";
  button.textContent = button.dataset.really;
  const announcement = document.querySelector("[data-announces]");
  if (announcement) announcement.textContent = button.dataset.really;
  button.addEventListener("blur", () => {
    // It keeps its size, so that what the person presses instead does not move away under the pointer.
    const { width, height } = button.getBoundingClientRect();
    Object.assign(button.style, { minWidth: `${width}px`, minHeight: `${height}px` });
    delete button.dataset.isArmed;
    button.replaceChildren(...before);
    if (announcement) announcement.textContent = "";
  }, { once: true });
});

// A key that is held and a double click are one press.
document.addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter" && event.target.dataset.really) event.preventDefault();
});
document.addEventListener("click", (event) => {
  if (event.detail > 1 && event.target.closest("[data-really]")) event.preventDefault();
});

// A form is sent once: a second press would drop the answer to the first, which may have a secret that is
// shown only there. Forms that a script sends (`preventDefault`) are left to that script.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (form.dataset.isSent) return event.preventDefault();
  form.dataset.isSent = "yes";
  setTimeout(() => delete form.dataset.isSent, 5_000);
});
window.addEventListener("pageshow", () => {
  for (const form of document.forms) delete form.dataset.isSent;
});
