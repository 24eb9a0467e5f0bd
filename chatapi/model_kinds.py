"""A row for each kind of models, with the differences that pages and tests of deployments need."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from chatapi import snippets
from chatapi.models import ModelKind
from chatapi.snippets import Template
from chatapi.wire.generation_request import GenerationRequest
from chatapi.wire.messages import UserMessage
from chatapi.wire.prompts import Inputs, Messages
from chatapi.wire.protocols import Protocol
from chatapi.wire.protocols.chat import CHAT
from chatapi.wire.protocols.embeddings import EMBEDDINGS
from chatapi.wire.protocols.messages import MESSAGES
from chatapi.wire.protocols.responses import RESPONSES


class ClientAPI(NamedTuple):
    """An API by which clients call models, as pages show it."""

    name: str
    protocol: Protocol
    code: Sequence[Template]
    """A first request in several languages."""
    on_key_page: Sequence[str]
    """The titles of the templates that the page of a new key shows."""

    @property
    def body(self) -> type[msgspec.Struct]:
        """The struct of its requests' bodies; the fields are the parameters."""
        return self.protocol.operations[0].request


class KindOfModels(NamedTuple):
    """What differs between kinds of models, outside their protocols."""

    apis: Sequence[ClientAPI]
    test_request: GenerationRequest
    """The request of the admin's test of a deployment, for one token at most."""
    has_output: bool
    """Whether answers have tokens of their own, with a limit and a price."""


MODEL_KINDS: Final[Mapping[str, KindOfModels]] = {
    ModelKind.CHAT: KindOfModels(
        apis=(
            ClientAPI("Chat", CHAT, snippets.CHAT, on_key_page=("curl", "Python", "Node.js")),
            ClientAPI("Responses", RESPONSES, snippets.RESPONSES, on_key_page=("Python",)),
            ClientAPI("Messages", MESSAGES, snippets.MESSAGES, on_key_page=("Python",)),
        ),
        test_request=GenerationRequest(
            model="test", prompt=Messages([UserMessage("Say yes.")]), stream=True, digest=""
        ),
        has_output=True,
    ),
    ModelKind.EMBEDDINGS: KindOfModels(
        apis=(ClientAPI("Embeddings", EMBEDDINGS, snippets.EMBEDDINGS, on_key_page=("curl", "Python")),),
        test_request=GenerationRequest(model="test", prompt=Inputs("yes"), digest=""),
        has_output=False,
    ),
}
assert set(MODEL_KINDS) == set(ModelKind), "a kind of models has no row"
