"""Who looks at the admin in tests, and where its pages are."""

from typing import Any

from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse


def client_of(user: User) -> Client:
    """Signed in."""
    client = Client()
    client.force_login(user)
    return client


def downloaded(client: Client, path: str) -> str:
    """An export, which is sent in parts."""
    response: Any = client.get(path)
    assert response.status_code == 200, response.content

    async def gather() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    return async_to_sync(gather)().decode()


def page(row: Any, action: str = "change") -> str:
    """The address of a row's page."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{action}", args=[row.pk])
