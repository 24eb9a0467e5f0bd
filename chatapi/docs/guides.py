"""The guides: Markdown files of docs/ as parts of pages.

A file's part below the heading "For operators" is left out: it is for people who read the repository.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from django.conf import settings
from markdown_it.token import Token

from chatapi.docs.markdown import MARKDOWN

WRITTEN_BASE_URL = "http://127.0.0.1:8000"
"""The base URL in the examples of docs/, which readers see replaced by their own."""
_FOR_OPERATORS = re.compile(r"^## For operators$.*", re.MULTILINE | re.DOTALL)
_TITLES = {
    "quickstart": "Quick start",
    "chat": "Chat completions",
    "responses": "Responses",
    "messages": "Messages",
    "embeddings": "Embeddings",
    "fallbacks": "Fallback models",
    "streams": "Streams and repeats",
    "errors": "Errors",
    "limits": "Limits and budgets",
    "prices": "Prices and receipts",
    "keys": "Keys and security",
    "workload-identity": "Programs without stored keys",
    "sign-in": "Signing in",
    "end-users": "End users",
    "sandbox": "Sandbox",
    "provisioning": "Management API",
    "statements": "Statements",
    "payment": "Payment",
    "notifications": "Notifications",
}
"""The guides' titles in the menu by their slugs, which are the names of their files."""


@dataclass(frozen=True)
class Heading:
    """A heading of the second level, with the id that links to it."""

    id: str
    text: str


@dataclass(frozen=True)
class Guide:
    """A guide as HTML, without its title."""

    slug: str
    title: str
    html: str
    headings: Sequence[Heading]

    def html_for(self, base_url: str) -> str:
        """Return the HTML with examples for this base URL, which must be safe in HTML."""
        return self.html.replace(WRITTEN_BASE_URL, base_url)


def menu() -> dict[str, str]:
    """Return the titles of the guides that are installed, by slug."""
    return {slug: title for slug, title in _TITLES.items() if _path(slug).is_file()}


def source(slug: str) -> str:
    """Return the Markdown of an installed guide, without the part for operators."""
    return _FOR_OPERATORS.sub("", _path(slug).read_text())


@cache
def descriptions() -> dict[str, str]:
    """Return the first sentence of each guide up to a colon, as HTML without links, by slug."""
    found = {}
    for slug in menu():
        paragraph = source(slug).split("\n\n", 2)[1].replace("\n", " ")
        sentence = re.split(r"(?<=\.) |:(?: |$)", paragraph)[0].removesuffix(".") + "."
        tokens = MARKDOWN.parseInline(sentence)[0].children or []
        shown = [token for token in tokens if token.type not in ("link_open", "link_close")]
        found[slug] = MARKDOWN.renderer.render(shown, MARKDOWN.options, {})
    return found


@cache
def guide(slug: str) -> Guide | None:
    """Return the guide, or None if there is none of this slug."""
    if slug not in menu():
        return None
    tokens = MARKDOWN.parse(source(slug))
    title, tokens = tokens[1].content, tokens[3:]
    headings = _give_ids(tokens)
    for token in tokens:
        if token.children:
            token.children = list(_with_page_links(token.children))
    return Guide(slug, title, MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}), headings)


def _path(slug: str) -> Path:
    return Path(settings.BASE_DIR) / "docs" / f"{slug}.md"


def _give_ids(tokens: Sequence[Token]) -> Sequence[Heading]:
    """Give the headings GitHub's ids, and return those of the second level."""
    found = []
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            text = inline.content.replace("`", "")
            opening.attrSet("id", re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-"))
            if opening.tag == "h2":
                found.append(Heading(str(opening.attrGet("id")), text))
    return found


def _with_page_links(children: Iterable[Token]) -> Iterator[Token]:
    """Let links between files be links between pages; those to other files become plain text."""
    is_dropped = False
    for token in children:
        if token.type == "link_open":
            url = _page_url(str(token.attrGet("href")))
            is_dropped = url is None
            token.attrSet("href", url or "")
        if not is_dropped or token.type not in ("link_open", "link_close"):
            yield token


def _page_url(href: str) -> str | None:
    """Return the URL of a link in a guide, or None if there is no page for it."""
    path, _, fragment = href.partition("#")
    if not path or "://" in path or path.startswith("reference/"):
        return href
    slug = path.removesuffix(".md")
    return f"{slug}{'#' if fragment else ''}{fragment}" if slug in menu() else None
