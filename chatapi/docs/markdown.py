"""Renders Markdown as HTML with markdown-it-py: CommonMark with tables; HTML in it is escaped."""

import re
from collections.abc import Sequence
from itertools import cycle, pairwise

from django.utils.html import format_html
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

_EXAMPLE = re.compile(r"(\$ )?((?:[^\n]*\\\n)*[^\n]*\n?)(.*)", re.DOTALL)
"""A prompt, a command with its continued lines, and its output."""


class _Renderer(RendererHTML):
    """Gives examples a Copy button, and tables the form that fits a phone."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render an example; in a console block, each command with its output."""
        text = tokens[idx].content
        if tokens[idx].info != "console":
            return _example(f"example-{idx}", "", text, "")
        parts = [part for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE) if part]
        found = [_EXAMPLE.fullmatch(part) for part in parts]
        return "".join(
            _example(f"example-{idx}-{i}", *each.groups("")) for i, each in enumerate(found) if each
        )

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render an indented example like one between fences."""
        return self.fence(tokens, idx, options, env)

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Open a table whose cells name their columns, for phones, on which a row becomes a block."""
        end = next(number for number in range(idx, len(tokens)) if tokens[number].type == "table_close")
        names = [cell.content for th, cell in pairwise(tokens[idx:end]) if th.type == "th_open"]
        cells = [token for token in tokens[idx:end] if token.type == "td_open"]
        for cell, name in zip(cells, cycle(names), strict=False):
            cell.attrSet(*(("data-label", name) if name else ("class", "full")))
        return '<table class="rows">\n'


def _example(name: str, prompt: str, copied: str, output: str) -> str:
    return format_html(
        '<div class="example"><button type="button" class="small needs-script"'
        ' data-copies="{0}">Copy</button>'
        '<pre tabindex="0" role="region" aria-label="{0}"><code>{1}<span id="{0}">{2}</span>'
        '<span class="faint">{3}</span></code></pre></div>\n',
        name,
        prompt,
        copied,
        output,
    )


MARKDOWN = MarkdownIt("commonmark", {"html": False}, renderer_cls=_Renderer).enable("table")


def inline(text: str) -> SafeString:
    """Return Markdown without paragraphs as HTML; HTML in it is escaped."""
    return SafeString(MARKDOWN.renderInline(text))


def blocks(text: str) -> SafeString:
    """Return Markdown as HTML; HTML in it is escaped."""
    return SafeString(MARKDOWN.render(text))
