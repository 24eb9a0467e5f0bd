"""Every kind of models has what pages need of it."""

from chatapi import snippets
from chatapi.models import ModelKind
from chatapi.pages import deployment_pages, key_snippets


def test_each_kind_has_a_test_request_and_snippets() -> None:
    assert set(deployment_pages._REQUESTS) == set(ModelKind.values)
    assert set(key_snippets._SHOWN) == set(snippets.PROTOCOLS) == set(ModelKind)
