"""The lists of usage, sorted by the name of an organization."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse

from accounts.models import Organization
from tests.admin_pages import client_of
from usage.books import credit


@pytest.mark.django_db
@pytest.mark.parametrize(("sort", "expected"), [("2", ["team 2", "team 10"]), ("-2", ["team 10", "team 2"])])
def test_the_ledger_is_sorted_by_the_numbers_in_names(sort: str, expected: list[str]) -> None:
    for name in ("team 10", "team 2"):
        credit.grant(Organization.objects.create(name=name), 10**9, credit.Note("a test", "olga"))
    client = client_of(User.objects.create_superuser("operator"))
    page: Any = client.get(reverse("admin:usage_ledgerentry_changelist"), {"o": sort})
    assert [row.organization.name for row in page.context["cl"].result_list] == expected
