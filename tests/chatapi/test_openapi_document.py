"""`GET /openapi.json` when many ask for it before it was made."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from chatapi.api import openapi

CLIENTS = 8


@pytest.fixture(autouse=True)
def not_made_yet() -> Iterator[None]:
    openapi._document.cache_clear()
    yield
    openapi._document.cache_clear()


def test_all_who_ask_first_get_the_same_document() -> None:
    barrier = Barrier(CLIENTS)

    def ask() -> bytes:
        barrier.wait(10)
        response = openapi.document(RequestFactory().get("/openapi.json"))
        assert isinstance(response, HttpResponse)
        return response.content

    with ThreadPoolExecutor(CLIENTS) as pool:
        documents = {each.result() for each in [pool.submit(ask) for _ in range(CLIENTS)]}
    assert len(documents) == 1
