"""docs/responses.md names each parameter, item, part and tool, also those that are refused."""

import re
from pathlib import Path
from typing import get_args

import pytest

from chatapi.wire.protocols.responses import items, parts, tools
from chatapi.wire.protocols.responses.options import CacheOptions, ReasoningOptions, TextOptions
from chatapi.wire.protocols.responses.request import ResponsesRequest

DOCUMENT = (Path(__file__).parents[2] / "docs/responses.md").read_text()
# Only the service sets these.
OURS = {"resolved", "extras", "ignored"}
PARAMETERS = [name for name in ResponsesRequest.__struct_fields__ if name not in OURS]
OPTIONS = [
    *(f"reasoning.{name}" for name in ReasoningOptions.__struct_fields__),
    *(f"text.{name}" for name in TextOptions.__struct_fields__),
    *(f"prompt_cache_options.{name}" for name in CacheOptions.__struct_fields__),
]
KINDS = (*get_args(items.Item), *get_args(parts.MessagePart), parts.SummaryText, parts.ReasoningText)
TAGS = {str(kind.__struct_config__.tag) for kind in (*KINDS, *get_args(tools.Tool), tools.FlatAllowedTools)}


@pytest.mark.parametrize("name", [*PARAMETERS, *OPTIONS, *sorted(TAGS | items.BUILT_IN)])
def test_the_document_names_each_parameter_item_and_tool(name: str) -> None:
    assert re.search(rf"`{re.escape(name)}[`.]", DOCUMENT)


def test_the_document_lists_the_items_that_are_refused() -> None:
    listed = DOCUMENT.partition("so the client has to decide. They are\n")[2].partition(".\n")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == items.BUILT_IN
