// The admin's script, on top of the theme's and Django's: accessible names, menus, filters, dialogs.

// Names the fields in tables after their columns. A row that is added later is a copy of one of these.
function nameFieldsInTables() {
  const fields = ":is(input:not([type=hidden]), select, textarea)";
  for (const field of document.querySelectorAll(`table.formset td[data-label] ${fields}`)) {
    if (!field.labels.length) field.ariaLabel = field.closest("td").dataset.label;
  }
}

// Names the field that select2 shows instead of a select after the select. The chosen text is its value, and
// no longer a text field inside it.
function nameSelects() {
  for (const select of document.querySelectorAll("select.select2-hidden-accessible")) {
    const label = select.labels[0];
    const shown = select.nextElementSibling.querySelector("[role=combobox]");
    const chosen = shown?.querySelector("[role=textbox]");
    if (!label || !chosen) continue;
    label.id ||= `${select.id}_label`;
    shown.setAttribute("aria-labelledby", `${label.id} ${chosen.id}`);
    chosen.removeAttribute("role");
    chosen.removeAttribute("aria-readonly");
  }
}

// When a select2 opens: says which list it controls, and names its search field.
function nameOpened(event) {
  const shown = event.target.nextElementSibling.querySelector("[role=combobox][aria-owns]");
  shown?.setAttribute("aria-controls", shown.getAttribute("aria-owns"));
  const search = document.querySelector(".select2-dropdown [role=searchbox]");
  if (search) search.ariaLabel = event.target.labels[0]?.innerText ?? "Search";
}

// The filters of two lists side by side get their names from these icons. An element without a role can't
// have a name, but an image can.
function nameFilters() {
  for (const icon of document.querySelectorAll(".help-tooltip[aria-label]")) icon.role = "img";
}

// Keeps each group of the menu open or closed, as the reader left it. The current page's group begins open.
function keepMenuGroups() {
  for (const group of document.querySelectorAll(".menu-group")) {
    const key = `menu: ${group.dataset.group}`;
    const kept = localStorage.getItem(key);
    if (kept && !("isCurrent" in group.dataset)) group.open = kept === "open";
    group.querySelector("summary").addEventListener("click", () => {
      localStorage.setItem(key, group.open ? "closed" : "open");
      setTimeout(() => group.scrollIntoView({ block: "nearest" })); // once the browser has opened it
    });
  }
}
addEventListener("DOMContentLoaded", keepMenuGroups);

// Makes the openers of menus beside fields into buttons: the theme opens these menus only with a mouse.
function makeMenuButtons() {
  for (const opener of document.querySelectorAll(".related-widget-wrapper [x-on\\:click]")) {
    opener.role = "button";
    opener.tabIndex = 0;
    opener.ariaLabel = "More actions";
    opener.setAttribute("aria-controls", opener.closest(".related-widget-wrapper").dataset.id);
    opener.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      opener.click();
    });
  }
}

// Moves the focus into the filters or the menu that a button opens, and back when they close.
function passFocus(opener) {
  const opened = document.getElementById(opener.getAttribute("aria-controls"));
  if (!opened) return;
  let wasOpen = false;
  opener.ariaExpanded = "false";
  new MutationObserver(() => {
    const isOpen = opened.checkVisibility();
    if (isOpen === wasOpen) return;
    wasOpen = isOpen;
    opener.ariaExpanded = String(isOpen);
    if (isOpen) opened.querySelector("a[href], select, input:not([type=hidden])")?.focus();
    else if (opened.contains(document.activeElement)) opener.focus();
  }).observe(opened, { attributeFilter: ["style"] });
}

// The theme's and Django's scripts run when the page has loaded, some a moment later.
addEventListener("load", () => setTimeout(() => {
  nameFieldsInTables();
  nameSelects();
  nameFilters();
  makeMenuButtons();
  document.querySelectorAll(":is(button, [role=button])[aria-controls]").forEach(passFocus);
  window.django?.jQuery?.(document).on("select2:open", nameOpened);
}));

// The theme's icons are words in a font of symbols: a screen reader would read "block" before "Revoke". A
// control that has only icons gets a name that says what it does.
const ICON_CONTROLS = { forum: "chatapi", search: "Search", more_horiz: "More actions" };

function hideIcons() {
  for (const icon of document.querySelectorAll(".material-symbols-outlined:not([aria-hidden])")) {
    icon.ariaHidden = "true";
    const control = icon.closest("a, button");
    const hasText = [...(control?.childNodes ?? [])].some(
      (node) => node.textContent.trim() && !node.classList?.contains("material-symbols-outlined"));
    const word = icon.textContent.trim();
    if (control && !hasText && !control.title)
      control.ariaLabel ??= ICON_CONTROLS[word] ?? word.replaceAll("_", " ");
  }
}

addEventListener("DOMContentLoaded", () => {
  hideIcons();
  new MutationObserver(hideIcons).observe(document.body, { childList: true, subtree: true });
});

// Opening a dialog keeps the page's title.
htmx.config.ignoreTitle = true;

// If there is no dialog to show, because the session has ended, or the server refuses or does not respond,
// the link leads to its page, which says why.
document.addEventListener("htmx:sendError", ({ target }) => {
  if (target.getAttribute("hx-select") === "#dialog") location.assign(target.href);
});
document.addEventListener("htmx:afterOnLoad", ({ target, detail }) => {
  if (target.getAttribute("hx-select") !== "#dialog") return;
  if (detail.xhr.status !== 200 || !document.querySelector("#modal-content #dialog"))
    location.assign(target.href);
});
