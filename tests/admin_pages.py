"""Clients that are signed in to the admin, the URLs of its pages, and the text that they show."""

import re
from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse


def client_of(user: User) -> Client:
    """Return a client that is signed in as this person."""
    client = Client()
    client.force_login(user)
    return client


def downloaded(client: Client, path: str) -> str:
    """Return an export, which the server sends in parts."""
    response: Any = client.get(path)
    assert response.status_code == 200, response.content
    return body(response)


def body(response: Any) -> str:
    """Return the body of a page or an export."""

    async def gather() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    return (async_to_sync(gather)() if response.streaming else response.content).decode()


def page(row: Any, action: str = "change") -> str:
    """Return the URL of a row's page."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{action}", args=[row.pk])


def text(response: Any, status: int = 200) -> str:
    """Return a whole page without its tags."""
    assert response.status_code == status, response.status_code
    return _without_tags(response.content.decode())


def shown(response: Any, status: int = 200) -> str:
    """Return the content of one of our own pages without its tags, the theme's frame left out."""
    assert response.status_code == status, response.status_code
    _, _, content = response.content.decode().partition('<div class="operator')
    return _without_tags(content)


def _without_tags(html: str) -> str:
    seen = re.sub(r'<span class="zeros">0*</span>', "", html)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", seen))
