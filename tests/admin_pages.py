"""Who looks at the admin in tests, and where its pages are."""

from typing import Any

from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse


def client_of(user: User) -> Client:
    """Signed in."""
    client = Client()
    client.force_login(user)
    return client


def page(row: Any, action: str = "change") -> str:
    """The address of a row's page."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{action}", args=[row.pk])
