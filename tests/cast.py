"""The people of the tests, and the generations that they run."""

import json
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from accounts import keys
from accounts.authentication import Caller, look_up
from accounts.errors import NotAuthenticated
from accounts.models import APIKey, Member, Organization, Project, Role
from chatapi import identity
from usage.books import ledger
from usage.books.settlement import Attempt
from usage.database.clock import database_now
from usage.models import Generation, Outcome, UsageSource
from usage.pricing import Price, Tokens

PRICE = Price(150_000_000, 75_000_000, 600_000_000)
"""$0.15, $0.075 and $0.60 per million tokens."""


@dataclass(frozen=True)
class Person:
    """Someone with a place in an organization, and a key of a project."""

    user: User
    project: Project
    api_key: APIKey
    key: str

    @property
    def caller(self) -> Caller:
        """Return the caller that the key authenticates."""
        return look_up(self.key)

    def get(self, path: str, **headers: str) -> Any:
        """Return the answer to a GET with the person's key."""
        return Client().get(path, headers={"authorization": f"Bearer {self.key}", **headers})

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer to the person's key; `body` is sent as JSON, and bytes as they are."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return Client().generic(
            method, path, data, "application/json", headers={"authorization": f"Bearer {self.key}"}
        )

    def manage_as(self, role: str) -> "Person":
        """Let the key manage the organization with this role, and return the person."""
        APIKey.objects.filter(pk=self.api_key.pk).update(is_admin=True, manages_as=role)
        return self


def is_let_in(secret: str) -> bool:
    """Return whether the secret authenticates a caller."""
    try:
        look_up(secret)
    except NotAuthenticated:
        return False
    return True


def join(name: str, role: Role, organization: Organization, project: str) -> Person:
    """Create a person in that organization, with a live key of that project."""
    user = User.objects.create_user(name)
    Member.objects.create(organization=organization, user=user, role=role)
    home, _ = Project.objects.get_or_create(organization=organization, name=project)
    row, key = keys.create_key(home, name=name)
    return Person(user, home, row, key)


def admit(person: Person, **changes: Any) -> Generation:
    """Admit a generation; it waits for a worker."""
    caller = person.caller
    wish: dict[str, Any] = {
        "id": identity.new_id(),
        "organization_id": caller.organization_id,
        "project_id": caller.project_id,
        "api_key_id": caller.api_key_id,
        "time_zone": caller.time_zone,
        "is_test": caller.is_test,
        "model": "small",
        "endpoint": "chat.completions",
        "dialect": "openai",
        "is_stream": True,
        "choices_count": 1,
        "sampled_count": 1,
        "max_output_tokens": 1_000,
        "prompt_tokens_bound": 2_000,
        "price": PRICE,
        "queue_ttl_ms": 60_000,
    }
    with transaction.atomic():
        (result,) = ledger.admit(database_now(), [ledger.Admission(**wish | changes)])
    assert not isinstance(result, Exception), result
    return Generation.objects.get(pk=result)


def run(
    person: Person,
    *,
    tokens: Tokens | None = None,
    price: Any = PRICE,
    model: str = "small",
    end_user: str | None = None,
    fallback: Any = None,
    **ending: Any,
) -> Generation:
    """Run a generation to its settlement; by default a completed one with 1000 tokens in (400 cached) and 200
    out. `fallback`: the `Candidate` that answers instead of the model.
    """
    counts = person.caller.counts_end_users
    fallbacks = () if fallback is None else (fallback,)
    generation = admit(
        person, price=price, model=model, end_user=end_user, counts_end_user=counts, fallbacks=fallbacks
    )
    end: dict[str, Any] = {
        "outcome": Outcome.COMPLETED,
        "usage_source": UsageSource.UPSTREAM,
        "finish_reason": "stop",
    }
    with transaction.atomic():
        (claimed,) = ledger.claim(database_now(), [ledger.Claim(generation.pk, "worker-1", 6_000)])
        assert isinstance(claimed, ledger.Claimed)
        if fallback is not None:
            ledger.switch(database_now(), [ledger.Switch(generation.pk, claimed.fence, fallback, model)])
        shown = (
            end
            | {"deployment": "sandbox", "attempts": 1, "first_token_ms": 40, "last_token_ms": 900}
            | ending
        )
        error_code = shown.get("error_code", "upstream_error") if shown["outcome"] == Outcome.FAILED else ""
        shown.setdefault("attempt_log", [Attempt(shown["deployment"], error_code, 900)])
        used = tokens or Tokens(1_000, 200, cached_tokens=400)
        settlement = ledger.Settlement(id=generation.pk, fence=claimed.fence, tokens=used, **shown)
        ledger.settle(database_now(), [settlement])
    generation.refresh_from_db()
    return generation
