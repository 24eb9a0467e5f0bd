// The script of all pages of the console: announcements, tabs, and the menus at the top.

function announce(text) {
  document.querySelector("[data-announces]").textContent = text;
}

// Tabs, as https://www.w3.org/WAI/ARIA/apg/patterns/tabs/ describes them.
for (const list of document.querySelectorAll("[role=tablist]")) {
  const tabs = [...list.querySelectorAll("[role=tab]")];
  const choose = (chosen) => {
    for (const tab of tabs) {
      tab.setAttribute("aria-selected", tab === chosen);
      tab.tabIndex = tab === chosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = tab !== chosen;
    }
  };
  list.addEventListener("click", (event) => { if (tabs.includes(event.target)) choose(event.target); });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs.at((tabs.indexOf(event.target) + step) % tabs.length);
    choose(next);
    next.focus();
  });
  choose(tabs[0]);
}

// The menus at the top: one is open at a time.
const menus = [...document.querySelectorAll(".switcher")];
document.addEventListener("click", (event) => {
  for (const menu of menus) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const open = menus.find((menu) => menu.open);
  if (event.key !== "Escape" || !open) return;
  open.open = false;
  open.querySelector("summary").focus();
});

// Ctrl+K, or ⌘K, leads to the search. In a field of a Mac Ctrl+K deletes what follows in the line. No single
// character is a shortcut: people who speak to their computer would press it by chance (WCAG 2.1.4).
const search = document.querySelector("[data-search]");
const isMac = /^(Mac|iP)/.test(navigator.platform);
document.addEventListener("keydown", (event) => {
  const isTyped = event.target.closest("input, textarea, select, [contenteditable]");
  const isHeld = event.metaKey || (event.ctrlKey && !(isMac && isTyped));
  const isK = event.key.toLowerCase() === "k" && isHeld && !event.altKey && !event.shiftKey;
  if (!search || !isK) return;
  event.preventDefault();
  search.focus();
  search.select();
});

// On a phone, the links to the pages are a row wider than the screen: it is scrolled to the current one.
const side = document.querySelector(".side");
const current = side?.querySelector("[aria-current]");
if (current) side.scrollLeft = current.offsetLeft - side.clientWidth / 3;

export { announce };
