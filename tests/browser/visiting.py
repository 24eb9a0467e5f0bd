"""What is wrong with a page: for axe-core, for somebody with a keyboard only, on a phone and in the dark."""

import os
import re
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]  # it brings no types
from playwright.sync_api import Error, Page, Response

EVERYTHING: dict[str, Any] = {"resultTypes": ["violations"]}
# In the admin's theme: what is outside of landmarks is slow to find, and of moderate impact.
OF_THE_THEME: dict[str, Any] = EVERYTHING | {"rules": {"region": {"enabled": False}}}
SERIOUS = ("serious", "critical")
SHOTS = os.environ.get("CHATAPI_SCREENSHOTS")
PHONE, SCREEN = {"width": 390, "height": 844}, {"width": 1280, "height": 800}
LOOK = """() => {
  const wrong = [];
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) wrong.push(`${root.scrollWidth} px wide`);
  for (const each of document.querySelectorAll(".side li > a, .card dl > dd")) {
    const beyond = each.getBoundingClientRect().right - each.parentElement.getBoundingClientRect().right;
    if (beyond > 1) wrong.push(`${each.innerText} ends ${beyond} px beyond its place`);
  }
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  canvas.fillStyle = "white";
  canvas.fillRect(0, 0, 1, 1);
  for (const each of [root, document.body]) {  // one may be transparent
    canvas.fillStyle = getComputedStyle(each).backgroundColor;
    canvas.fillRect(0, 0, 1, 1);
  }
  const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
  const isDark = 0.3 * red + 0.6 * green + 0.1 * blue < 100;
  if (isDark !== matchMedia("(prefers-color-scheme: dark)").matches) wrong.push(isDark ? "dark" : "light");
  return wrong;
}"""
"""Whether the page is wider than its window, an entry of the menu or a number of a card wider than its place,
or the page painted in another scheme than is preferred.
"""
WATCH = """() => {
  const kinds = "a[href], button, input, select, textarea, summary, [tabindex], [contenteditable]";
  const isSeen = (each) => each.checkVisibility({visibilityProperty: true});
  const focusable = [...document.querySelectorAll(kinds)].filter((each) =>
    isSeen(each) && each.tabIndex >= 0 && !each.disabled && !each.closest("[inert]")
    && !(each.type === "radio" && !each.checked));
  const style = (each) => {
    const {boxShadow, borderColor, backgroundColor, color, textDecorationLine} = getComputedStyle(each);
    return [boxShadow, borderColor, backgroundColor, color, textDecorationLine].join();
  };
  const around = (each) => [
    each, each.nextElementSibling, each.parentElement, each.parentElement?.parentElement,
  ].filter(Boolean);
  const before = new Map(focusable.flatMap(around).map((each) => [each, style(each)]));
  const hasOutline = (each) => {
    const {outlineStyle, outlineWidth} = getComputedStyle(each);
    return outlineStyle !== "none" && parseFloat(outlineWidth) > 0;
  };
  const shown = new Set(), reached = new Set();
  document.addEventListener("focusin", ({target}) => {
    reached.add(target);
    document.getAnimations().forEach((each) => each.finish());
    const {width, height} = target.getBoundingClientRect();
    const differs = around(target).some(
      (each) => hasOutline(each) || (before.has(each) && before.get(each) !== style(each)));
    if (width > 1 && height > 1 && differs) shown.add(target);
  });
  const text = (each) => each.outerHTML.slice(0, 160);
  const usable = "a[href], button, input, select, textarea, summary, label, option, "
    + "[tabindex]:not([tabindex='-1'])";
  const pointer = (each) => getComputedStyle(each).cursor === "pointer";
  const listens = (each) => each.onclick
    || each.getAttributeNames().some((name) => /^(@|x-on:)click(\\.(prevent|stop))*$/.test(name));
  window.keyboard = {
    steps: focusable.length + 6 * document.querySelectorAll("[type^=date], [type=time], [type=month]").length,
    isDone: () => focusable.every((each) => reached.has(each)),
    wrong: () => [
      ...focusable.filter((each) => !reached.has(each)).map((each) => `not reached: ${text(each)}`),
      ...[...reached].filter((each) => !shown.has(each)).map((each) => `focus not seen: ${text(each)}`),
      ...[...document.body.querySelectorAll("*")]
        .filter((each) => isSeen(each) && !each.closest(usable))
        .filter((each) => (pointer(each) && !pointer(each.parentElement)) || listens(each))
        .map((each) => `only for a mouse: ${text(each)}`),
    ],
  };
}"""
"""Keep which elements get the focus, and whether one sees that they have it."""
TO_THE_TOP = """() => {
  document.body.tabIndex = -1;
  document.body.focus();
  document.body.removeAttribute("tabindex");
  scrollTo(0, 0);
}"""
SKIP_LINK = """() => {
  const {top, width, height} = document.activeElement.getBoundingClientRect();
  return document.activeElement.innerText === "Skip to the content" && top >= 0 && width > 1 && height > 1;
}"""

IN_THE_CONTENT = "document.activeElement.closest('main') !== null"
"""Nothing to skip: of the front page, which has no menu."""


SHOW_CONTENT = """async (path) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  const shown = new DOMParser().parseFromString(await response.text(), "text/html");
  document.querySelector("main").replaceWith(document.adoptNode(shown.querySelector("main")));
  document.title = shown.title;
}"""


def complaints(page: Page) -> list[str]:
    """Return what is wrong with the page that is open, in the width and the colours that it has: in the admin
    what is serious to axe-core, elsewhere everything.
    """
    is_of_theme = "/admin/" in page.url
    page.evaluate(Axe().axe_script)
    page.evaluate("document.getAnimations().forEach((each) => each.finish())")
    options = OF_THE_THEME if is_of_theme else EVERYTHING
    violations = page.evaluate("(options) => axe.run(options)", options)["violations"]
    found = [
        f"{each['id']}: {each['nodes'][0]['html'][:160]} ({len(each['nodes'])})"
        for each in violations
        if each["impact"] in SERIOUS or not is_of_theme
    ]
    return found + list(page.evaluate(LOOK))


def complaints_about_content(page: Page, path: str) -> list[str]:
    """Return what is wrong with the page of this path, whose content is shown in the page that is open: a
    load and a look at its menu for each of hundreds of pages take minutes.
    """
    page.evaluate(SHOW_CONTENT, path)
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    violations = page.evaluate("(options) => axe.run('main', options)", EVERYTHING)["violations"]
    found = [f"{each['id']}: {each['nodes'][0]['html'][:160]} ({len(each['nodes'])})" for each in violations]
    return found + list(page.evaluate(LOOK))


def keyboard_complaints(page: Page) -> list[str]:
    """Press Tab from the top of the page to its end, and return what is wrong."""
    page.evaluate(TO_THE_TOP)
    page.evaluate(WATCH)
    page.keyboard.press("Tab")
    skips = page.evaluate(SKIP_LINK)
    if not (skips or page.evaluate(IN_THE_CONTENT)):
        return ["the first Tab does not lead to the skip link"]
    for _ in range(page.evaluate("keyboard.steps")):
        page.keyboard.press("Tab")
    for _ in range(20):
        if page.evaluate("keyboard.isDone()"):
            break
        page.keyboard.press("Tab")
    wrong: list[str] = page.evaluate("keyboard.wrong()")
    if skips:
        page.evaluate(TO_THE_TOP)
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        if page.evaluate("document.activeElement.id") != "main":
            wrong.append("the skip link does not lead to the content")
    return wrong


def visit(page: Page, url: str) -> Response | None:
    """Open the URL; return None if it is a file, or a form's address that shows no page."""
    try:
        response = page.goto(url)
    except Error as error:
        if "Download is starting" in error.message:
            return None
        raise
    assert response is not None
    is_page = response.headers.get("content-type", "").startswith("text/html") and response.status != 405
    return response if is_page else None


def shot(page: Page, name: str) -> None:
    """Save a picture of the whole page where somebody wants to look at it."""
    if SHOTS and page.viewport_size:
        scheme = "dark" if page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") else "light"
        name = re.sub("[^a-zA-Z0-9=.]+", "-", f"{name} {page.viewport_size['width']} {scheme}").strip("-")
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)
