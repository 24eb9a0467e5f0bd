"""The playground's protocols: its page and its code have each one that streams, with the same paths."""

import re
from pathlib import Path

import pytest

from chatapi.snippets import STREAMING
from chatapi.wire.protocols import PROTOCOLS, Protocol

SCRIPT = (Path(__file__).parents[2] / "chatapi/static/console/protocols.js").read_text()
IN_SCRIPT = {
    name: (path, has_dialects == "true")
    for name, path, has_dialects in re.findall(
        r"^  (\w+): \{\n    path: \(\w*\) => ['\"`](\S+)['\"`],\n    hasDialects: (\w+),$",
        SCRIPT,
        re.MULTILINE,
    )
}
STREAMED = {
    operation.path: protocol
    for protocol in PROTOCOLS.values()
    if protocol.can_stream and not protocol.counts_tokens
    for operation in protocol.operations
}


def test_each_protocol_that_streams_has_its_code_and_its_row_in_the_page() -> None:
    assert {its.path for its in STREAMING.values()} == STREAMED.keys()
    assert IN_SCRIPT.keys() == STREAMING.keys()


@pytest.mark.parametrize(("path", "protocol"), STREAMED.items())
def test_the_page_has_its_path_and_whether_it_has_dialects(path: str, protocol: Protocol) -> None:
    has_dialects = len(protocol.dialects) > 1
    prefixed = "/${dialect}" + path if has_dialects else path
    assert (prefixed, has_dialects) in IN_SCRIPT.values()
