"""Every kind of models has its row in the tables of kinds, and a protocol that asks its models."""

import pytest

from chatapi.api.organization import REPORTS
from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import ModelKind
from chatapi.wire.protocols import PROTOCOLS


@pytest.mark.parametrize("kind", ModelKind)
def test_each_kind_has_its_protocol_and_its_usage_route(kind: ModelKind) -> None:
    asking = [each for each in PROTOCOLS.values() if each.model_kind == kind and not each.counts_tokens]
    bodies = {operation.request for each in asking for operation in each.operations}
    assert asking, "a protocol that asks it"
    assert {api.body for api in MODEL_KINDS[kind].apis} <= bodies, "the API's reference"
    assert not kind.has_own_usage_route or f"usage/{kind.value}" in REPORTS, "its usage route"


@pytest.mark.parametrize("kind", ModelKind)
def test_the_page_of_a_key_has_code_for_each_api(kind: ModelKind) -> None:
    for api in MODEL_KINDS[kind].apis:
        assert api.on_key_page, api.name
        assert {*api.on_key_page} <= {each.title for each in api.code}, api.name
