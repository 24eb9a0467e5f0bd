"""Every kind of models has its row in each table of kinds."""

from typing import get_args, get_type_hints

import pytest

from chatapi import snippets
from chatapi.api.organization import REPORTS
from chatapi.api.resources import Model
from chatapi.console import model_pages
from chatapi.models import ModelKind
from chatapi.pages import deployment_pages, key_snippets
from chatapi.wire.protocols import PROTOCOLS


def test_each_kind_has_a_test_request_and_snippets() -> None:
    assert set(deployment_pages._REQUESTS) == set(ModelKind.values)
    assert set(key_snippets._SHOWN) == set(snippets.PROTOCOLS) == set(ModelKind)


@pytest.mark.parametrize("kind", ModelKind)
def test_a_kind_has_its_row_in_each_other_table(kind: ModelKind) -> None:
    code = snippets.PROTOCOLS[kind].keys()
    assert key_snippets._SHOWN[kind].keys() <= code, "the code on a key's page"
    assert code <= model_pages._BODIES.keys(), "the parameters on a model's page"
    assert kind.value in get_args(get_type_hints(Model)["kind"]), "the API's word"
    assert any(protocol.model_kind == kind for protocol in PROTOCOLS.values()), "a protocol that asks it"
    assert not kind.has_own_usage_route or f"usage/{kind.value}" in REPORTS, "its usage route"
