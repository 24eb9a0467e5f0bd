"""OpenAI's own Python client without a stored key: a charged request with an exchanged token."""

import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.auth import WorkloadIdentityAuth, k8s_service_account_token_provider

from tests.chatapi.token_issuer import AUDIENCE, RSA, SUBJECT, Issuer
from tests.clients.admin_requests import owner_of
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("clients"), pytest.mark.timeout(120)]
ASKED: Any = {"model": "five", "messages": [{"role": "user", "content": "Hello"}]}


def federate(organization: Any, issuer: Issuer) -> tuple[Any, Any]:
    """Return a provider with the issuer's keys, and its rule for a service account."""
    project = organization.projects.create(name="shop")
    accounts = organization.projects.service_accounts
    account = accounts.create(project.id, name="backend", create_service_account_only=True)
    provider = organization.workload_identity_providers.create(
        name="cluster",
        type="oidc",
        issuer=issuer.url,
        audience=AUDIENCE,
        verification={"type": "uploaded_jwks", "jwks": issuer.jwks},
    )
    rule = organization.workload_identity_providers.federation_rules.create(
        provider.id,
        attribute_matchers={"sub": SUBJECT},
        project_id=project.id,
        service_account_id=account.id,
    )
    return provider, rule


def auth_of(installation: Installation, rule: Any, token: Path) -> WorkloadIdentityAuth:
    return WorkloadIdentityAuth(
        workload_identity={
            "identity_provider_id": rule.workload_identity_provider_id,
            "service_account_id": rule.service_account_id,
            "provider": k8s_service_account_token_provider(token),
        },
        token_exchange_url=f"{installation.url}/oauth/token",
    )


def is_refused(client: OpenAI) -> bool:
    try:
        client.models.list()
    except openai.AuthenticationError:
        return True
    return False


def test_a_request_without_a_stored_key_is_charged(installation: Installation, tmp_path: Path) -> None:
    issuer, token = Issuer(), tmp_path / "token"
    token.write_text(issuer.token())
    with owner_of(installation, "Keyless") as admin:
        organization = admin.admin.organization
        _, rule = federate(organization, issuer)
        auth = auth_of(installation, rule, token)
        with OpenAI(base_url=f"{installation.url}/v1", api_key=auth.get_token, max_retries=0) as client:
            answer = client.chat.completions.create(**ASKED)
            assert answer.usage is not None
            key_id = rule.to_dict()["api_key_id"]
            start: Any = {"start_time": int(time.time()) - 86_400, "group_by": ["api_key_id"]}

            def spent() -> list[Any]:
                buckets = organization.usage.completions(**start).data
                return [each for bucket in buckets for each in bucket.results]

            wait_for(lambda: len(spent()) == 1, "the settlement")
            (result,) = spent()
            assert (result.api_key_id, result.output_tokens) == (key_id, answer.usage.completion_tokens)
            listed = organization.projects.api_keys.retrieve(key_id, project_id=rule.project_id)
            owner: Any = listed.owner.service_account
            assert (listed.name, owner.id) == ("backend", rule.service_account_id)
            assert [each.id for each in organization.projects.api_keys.list(rule.project_id)] == [key_id]

            # A disabled rule ends the access tokens that exist, and an enabled one gives others.
            rules: Any = organization.workload_identity_providers.federation_rules
            place = {"workload_identity_provider_id": rule.workload_identity_provider_id}
            rules.update(rule.id, enabled=False, **place)
            wait_for(lambda: is_refused(client), "the end of the access token", timeout_s=3)
            auth.invalidate_token()
            with pytest.raises(openai.OAuthError, match="No enabled federation rule") as refused:
                client.models.list()
            assert refused.value.error == "invalid_grant"
            rules.update(rule.id, enabled=True, **place)
            assert client.models.list().data


def test_the_exchange_tells_the_sdk_what_is_wrong(installation: Installation, tmp_path: Path) -> None:
    issuer, token = Issuer(), tmp_path / "token"
    token.write_text(issuer.token(RSA, aud="other"))
    with owner_of(installation, "Mistaken") as admin:
        _, rule = federate(admin.admin.organization, issuer)
    auth = auth_of(installation, rule, token)
    with pytest.raises(openai.OAuthError, match="'aud'") as refused:
        auth.get_token()
    assert refused.value.error == "invalid_grant"
