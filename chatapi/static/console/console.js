// What all pages of the console share: buttons that copy, tabs, questions before what can't be undone, the switcher.

const COPIED_MS = 2000;

function announce(text) {
  document.getElementById("announcement").textContent = text;
}

// Without a secure origin there is no clipboard for scripts: then the text is selected, and copied as a person would.
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

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copies]");
  if (!button || button.dataset.usual) return;
  const isCopied = await copy(document.getElementById(button.dataset.copies));
  announce(isCopied ? "Copied" : "Not copied: press Ctrl+C or ⌘C");
  if (!isCopied) return;
  button.dataset.usual = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = button.dataset.usual;
    delete button.dataset.usual;
  }, COPIED_MS);
});

document.addEventListener("focusin", (event) => { if (event.target.matches("input[readonly]")) event.target.select(); });

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

const switcher = document.querySelector(".switcher");
document.addEventListener("click", (event) => { if (switcher && !switcher.contains(event.target)) switcher.open = false; });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !switcher?.open) return;
  switcher.open = false;
  switcher.querySelector("summary").focus();
});

// On a phone the pages are a strip that scrolls.
document.querySelector(".side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

export { announce };

// On a phone the pages are a row that is wider than the screen: it begins near the current one.
const side = document.querySelector(".side");
const current = side?.querySelector("[aria-current]");
if (current) side.scrollLeft = current.offsetLeft - side.clientWidth / 3;
