"""Every kind of models has its row in the tables of kinds, a protocol that asks its models, and is in the
documents.
"""

from pathlib import Path

import pytest

from chatapi.api.organization import REPORTS
from chatapi.api.organization_query import UNSERVED
from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import Deployment, ModelKind, ServedModel
from chatapi.wire.parameters import COMPLETION_LIMIT, CUSTOM_TOOLS
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.request_body import client_parameters
from tests.admin_pages import client_of, text
from tests.cast import Person

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ModelKind)
def test_each_kind_has_its_protocol_and_its_usage_route(kind: ModelKind) -> None:
    asking = [each for each in PROTOCOLS.values() if each.model_kind == kind and not each.counts_tokens]
    bodies = {operation.request for each in asking for operation in each.operations}
    assert asking, "a protocol that asks it"
    assert {api.body for api in MODEL_KINDS[kind].apis} <= bodies, "the API's reference"
    if kind.has_own_usage_route:
        assert REPORTS[f"usage/{kind.value}"].spec is not UNSERVED, "its usage route"


@pytest.mark.parametrize("kind", ModelKind)
def test_the_documents_name_each_kind(kind: ModelKind) -> None:
    of_kinds = ["docs/catalog.md", "docs/catalog.example.toml", "docs/security.md"]
    files = dict.fromkeys(of_kinds, kind.value)
    if kind.has_own_usage_route:
        files |= dict.fromkeys(["README.md", "docs/prices.md", "docs/provisioning.md"], f"usage/{kind.value}")
    for file, name in files.items():
        assert name in (ROOT / file).read_text(), file


@pytest.mark.parametrize("kind", ModelKind)
def test_the_page_of_a_key_has_code_for_each_api(kind: ModelKind) -> None:
    for api in MODEL_KINDS[kind].apis:
        assert api.on_key_page, api.name
        assert {*api.on_key_page} <= {each.title for each in api.code}, api.name


@pytest.mark.parametrize("kind", ModelKind)
def test_no_parameter_of_a_models_page_is_refused_as_unsupported(kind: ModelKind) -> None:
    refused = {"conversation", "prompt", "context_management", "resolved", "models", "extras", "ignored"}
    for api in MODEL_KINDS[kind].apis:
        names = set(client_parameters(api.body))
        assert "model" in names
        assert names.isdisjoint(refused - ({"models"} if kind.may_fall_back else set())), api.name


def test_a_models_page_shows_its_context_window_and_accepted_parameters(
    alice: Person, small: ServedModel
) -> None:
    page = client_of(alice.user).get(f"/console/{alice.project.organization_id}/models/{small.id}")
    found = text(page)
    assert f"Context window {small.context_window:,} tokens" in found
    assert f"Longest answer {small.max_output_tokens:,} tokens" in found
    lists = found.split("Accepted parameters ")[1:]
    apis = MODEL_KINDS[ModelKind(small.kind)].apis
    assert len(lists) == len(apis)
    for listed, api in zip(lists, apis, strict=True):
        assert listed.startswith(" , ".join(client_parameters(api.body))), api.name


def test_a_models_page_shows_only_extra_parameters_that_a_client_can_send(
    alice: Person, small: ServedModel
) -> None:
    Deployment.objects.update(extra_parameters=["top_k", CUSTOM_TOOLS, COMPLETION_LIMIT])
    page = client_of(alice.user).get(f"/console/{alice.project.organization_id}/models/{small.id}")
    assert "This model also takes top_k ." in text(page)
