"""The playground's protocols: its page and its code have each one that streams, with the same paths, and the
code fits the SDKs.
"""

import ast
import inspect
import re
from operator import attrgetter
from pathlib import Path

import pytest
from anthropic import Anthropic
from openai import OpenAI

from chatapi.snippets import STREAMING, code_of
from chatapi.wire.protocols import PROTOCOLS, Protocol
from chatapi.wire.request_body import client_parameters

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


@pytest.mark.parametrize("name", STREAMING)
def test_code_in_python_gives_the_sdk_by_name_what_it_names_and_all_else_as_it_is(name: str) -> None:
    its = STREAMING[name]
    parameters = {*client_parameters(STREAMED[its.path].operations[0].request), "min_p", "not a name"}
    client = (Anthropic if name == "messages" else OpenAI)(api_key="none")
    method = attrgetter(its.method.removeprefix("client."))(client)
    known = parameters & inspect.signature(method).parameters.keys()
    code = ast.parse(code_of(name, origin="", key="", body=dict.fromkeys(parameters, 1))["python"])
    calls = [node.keywords for node in ast.walk(code) if isinstance(node, ast.Call)]
    sent = next(found for each in calls if "stream" in (found := {word.arg: word.value for word in each}))
    assert ast.literal_eval(sent.pop("extra_body")).keys() == parameters - known
    assert sent.keys() == known
