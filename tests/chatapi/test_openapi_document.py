"""`GET /openapi.json`: what is in it, and when many ask for it before it was made."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from chatapi.api import openapi, openapi_routes
from chatapi.urls import client_routes
from chatapi.wire.protocols import PROTOCOLS
from chatapi.wire.protocols.chat import STYLES
from tests.protocols.small import VECTORS

CLIENTS = 8


@pytest.fixture(autouse=True)
def not_made_yet() -> Iterator[None]:
    caches = (openapi._document, openapi.content)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


def test_concurrent_first_requests_get_the_same_document() -> None:
    barrier = Barrier(CLIENTS)

    def ask() -> bytes:
        barrier.wait(10)
        response = openapi.document(RequestFactory().get("/openapi.json"))
        assert isinstance(response, HttpResponse)
        return response.content

    with ThreadPoolExecutor(CLIENTS) as pool:
        documents = {each.result() for each in [pool.submit(ask) for _ in range(CLIENTS)]}
    assert len(documents) == 1


def test_a_protocol_brings_its_operations_and_schemas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, VECTORS.name, VECTORS)
    found = json.loads(openapi._document())
    operation, schemas = found["paths"]["/v1/vectors"]["post"], found["components"]["schemas"]
    body, answer = operation["requestBody"], operation["responses"]["200"]
    assert body["content"]["application/json"]["schema"]["$ref"].endswith("/VectorsBody")
    assert answer["content"].keys() == {"application/json"}
    assert schemas["VectorsBody"]["properties"].keys() == {"model", "input"}
    assert schemas["Vectors"]["required"] == ["data", "tokens"]


def test_a_body_has_the_media_type_of_its_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    speech = replace(VECTORS, media_type="multipart/form-data")
    monkeypatch.setitem(PROTOCOLS, speech.name, speech)
    operation = json.loads(openapi._document())["paths"]["/v1/vectors"]["post"]
    assert operation["requestBody"]["content"].keys() == {"multipart/form-data"}


def test_a_whole_answer_has_the_media_type_of_its_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    speech = replace(VECTORS, answer_media_type="audio/mpeg")
    monkeypatch.setitem(PROTOCOLS, speech.name, speech)
    responses = json.loads(openapi._document())["paths"]["/v1/vectors"]["post"]["responses"]
    assert responses["200"]["content"].keys() == {"audio/mpeg"}
    assert responses["400"]["content"].keys() == {"application/json"}


def test_the_refusals_of_a_repeat_are_in_the_reference() -> None:
    """An `Idempotency-Key` is refused if its answer is gone, or if it stands for another request."""
    responses = json.loads(openapi._document())["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert {"410", "422"} <= responses.keys()


def test_the_reference_says_what_each_dialect_calls_its_chunks() -> None:
    schemas = json.loads(openapi._document())["components"]["schemas"]
    name = schemas["ChatCompletionChunk"]["properties"]["object"]
    assert all(
        f"`{dialect}` `{style.chunk_object}`" in name["description"] for dialect, style in STYLES.items()
    )


def test_each_reference_beside_a_view_is_in_the_document() -> None:
    views = [route.callback.view_class for route in client_routes if hasattr(route.callback, "view_class")]
    references = [view.reference for view in views if hasattr(view, "reference")]
    assert len(references) > 5
    paths = openapi_routes.paths()
    assert [each.path for each in references if each.method not in paths.get(each.path, {})] == []
