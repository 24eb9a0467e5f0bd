"""The bodies and objects of the management API about workload identity, as OpenAI's reference has them."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from accounts.models.workload_identity import MAX_CLAIM_CHARS, MAX_MATCHERS
from chatapi.api.management.bodies import Name, Scopes
from chatapi.api.management.pages import PageQuery, RowId

Description = Annotated[str, Meta(pattern=r"^[^\x00]{0,500}\Z")]
URL = Annotated[str, Meta(pattern=r"^https://[^\s/?#@]+(/[^\s?#]*)?\Z", max_length=255)]
Audience = Annotated[str, Meta(pattern=r"^[^\x00]{1,255}\Z")]
Claim = Annotated[str, Meta(min_length=1, max_length=MAX_CLAIM_CHARS)]
Matchers = Annotated[
    dict[Claim, Annotated[str, Meta(max_length=MAX_CLAIM_CHARS)] | bool | int | float],
    Meta(min_length=1, max_length=MAX_MATCHERS),
]


class AttributeTransformation(Struct, frozen=True, kw_only=True):
    """An expression that makes an attribute of claims."""

    attribute: str
    expression: str


# Expressions would need an interpreter of their language.
NoTransformations = Annotated[
    list[AttributeTransformation], Meta(max_length=0, description="Not supported: it must be empty.")
]


class DiscoveryVerification(Struct, frozen=True, kw_only=True, tag_field="type", tag="discovery"):
    """The signing keys are fetched, by the issuer's description at its well-known URL or at another one."""

    discovery_url: URL | None = None


class UploadedVerification(Struct, frozen=True, kw_only=True, tag_field="type", tag="uploaded_jwks"):
    """The signing keys are these public keys."""

    jwks: dict[str, Any]


class DefaultPermissions(Struct, frozen=True, kw_only=True, tag_field="type", tag="service_account_default"):
    """The access tokens may do everything that a key of the service account may do."""


class RestrictedPermissions(Struct, frozen=True, kw_only=True, tag_field="type", tag="restricted"):
    """The access tokens have these scopes only."""

    scopes: Annotated[Scopes, Meta(min_length=1)]


class ListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of providers."""

    order: Literal["asc", "desc"] = "asc"


class RuleListQuery(PageQuery, frozen=True, kw_only=True):
    """A page of the rules of a provider, or of those for one service account."""

    order: Literal["asc", "desc"] = "asc"
    service_account_id: RowId | None = None


class ProviderBody(Struct, frozen=True, kw_only=True):
    """A new provider. By default, the keys of the issuer are fetched."""

    name: Name
    type: Literal["oidc"]
    issuer: URL
    audience: Audience
    description: Description = ""
    enabled: bool = True
    verification: DiscoveryVerification | UploadedVerification = DiscoveryVerification()
    attribute_transformations: NoTransformations = []


class ProviderChange(Struct, frozen=True, kw_only=True):
    """The new values of a provider; what is left out stays."""

    name: Name | None = None
    issuer: URL | None = None
    audience: Audience | None = None
    description: Description | None = None
    enabled: bool | None = None
    verification: DiscoveryVerification | UploadedVerification | None = None
    attribute_transformations: NoTransformations | None = None


class RuleBody(Struct, frozen=True, kw_only=True):
    """A new rule: the service account of the project, for tokens whose claims have all of these values."""

    attribute_matchers: Matchers
    project_id: RowId
    service_account_id: RowId
    name: Name | None = None
    description: Description = ""
    enabled: bool = True
    permissions: DefaultPermissions | RestrictedPermissions = DefaultPermissions()


class RuleChange(Struct, frozen=True, kw_only=True):
    """The new values of a rule; what is left out stays."""

    attribute_matchers: Matchers | None = None
    name: Name | None = None
    description: Description | None = None
    enabled: bool | None = None
    permissions: DefaultPermissions | RestrictedPermissions | None = None


class Provider(Struct, frozen=True, kw_only=True):
    """An issuer of OpenID Connect tokens, whose programs need no stored keys."""

    object: Literal["organization.workload_identity_provider"] = "organization.workload_identity_provider"
    id: str
    type: Literal["oidc"] = "oidc"
    name: str
    description: str | None
    issuer: str
    audience: str
    enabled: bool
    verification: DiscoveryVerification | UploadedVerification
    attribute_transformations: list[AttributeTransformation]
    created_at: int
    updated_at: int


class FederationRule(Struct, frozen=True, kw_only=True):
    """The service account for tokens whose claims have all of these values. `api_key_id` is the key that
    stands for the access tokens, in usage, limits and budgets; OpenAI's object does not have it.
    """

    object: Literal["organization.workload_identity_federation_rule"] = (
        "organization.workload_identity_federation_rule"
    )
    id: str
    workload_identity_provider_id: str
    name: str | None
    description: str | None
    attribute_matchers: dict[str, str | bool | int | float]
    project_id: str
    service_account_id: str
    permissions: DefaultPermissions | RestrictedPermissions
    enabled: bool
    api_key_id: str
    created_at: int
    updated_at: int
