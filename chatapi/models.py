"""The tables of the catalog (models, and the deployments that serve them) and of stored responses."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from accounts.models import Organization, Project
from chatapi.identity import public_id
from chatapi.notifications.models import Delivery, DeliveryAttempt, MailPreference, WebhookEndpoint
from chatapi.wire import caps
from chatapi.wire.parameters import (
    COMPLETION_LIMIT,
    CUSTOM_TOOLS,
    ENGINE_PARAMETERS,
    MODEL_NAME_PATTERN,
    SERVICE_TIER,
)

# Django looks for tables here.
_TABLES = (Delivery, DeliveryAttempt, MailPreference, WebhookEndpoint)
model_name = RegexValidator(MODEL_NAME_PATTERN, "Use 1 to 128 ASCII letters, digits or . _ : / @ + -")

# The largest number in the catalog, for every database.
MAX_NUMBER = 2**31 - 1
MAX_BASE_URL_CHARS = 500
MAX_NAME_CHARS = 128
MAX_OWNER_CHARS = 100
# The most aliases of a model, and the most lines of a project's fallbacks.
MAX_ALIASES = 100
# The names of a deployment's timeouts.
TIMEOUTS = ("connect_ms", "first_delta_ms", "between_deltas_ms", "total_ms")
# The jobs and logs in Redis live longer (`delta_stream.RUN_TTL_MS`).
MAX_TIMEOUT_MS = 24 * 3_600_000
# How often a request that failed is sent again.
USUAL_RETRIES, MAX_RETRIES = 3, 10

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
# The beginnings of this server's variables, none of which may be sent to an upstream as its key.
_OWN_VARIABLES = ("CHATAPI_", "DATABASE_URL", "REDIS_URL", "OTEL_")
_at_most = MaxValueValidator(MAX_NUMBER)
_positive = [MinValueValidator(1), _at_most]


class Engine(models.TextChoices):
    """The engines; `worker/worker_services.py` has their classes."""

    OPENAI_COMPATIBLE = "openai_compatible", "OpenAI-compatible"
    ANTHROPIC = "anthropic"
    SANDBOX = "sandbox"


def base_url_mistake(engine: str, base_url: str) -> str | None:
    """Return the mistake in a deployment's URL, or None."""
    if engine == Engine.SANDBOX:
        return "the sandbox engine has none" if base_url else None
    try:
        url = urlsplit(base_url)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_good = False
    if not is_good or not base_url.isprintable() or " " in base_url:
        return f'{base_url!r} must be a URL such as "http://127.0.0.1:8080/v1"'
    if url.username or url.password or url.query or url.fragment:
        return (
            "must have no user, password, query or fragment; "
            "the upstream's key belongs into the variable that api_key_env names"
        )
    return None


def api_key_env_mistake(name: str) -> str | None:
    """Return the mistake in the name of a key's variable, or None; never repeat it: it may be a key."""
    if name and not _VARIABLE.fullmatch(name):
        return "must be the name of an environment variable, such as OPENAI_API_KEY; never the key itself"
    if name.startswith(_OWN_VARIABLES):
        return "must not be a variable of this server's own settings: the upstream would get its value"
    return None


def streaming_mistake(engine: str, streaming: str) -> str | None:
    if engine == Engine.ANTHROPIC and streaming in ("as_requested", "never"):
        return f"must not be '{streaming}' for the engine {engine!r}"
    return None


def choice_mistake(field: str, value: str, choices: type[models.TextChoices]) -> str | None:
    """Return the mistake in the value of a field, or None; a newer release may have written the value."""
    if value in choices.values:
        return None
    return f"this release has no {field} {value!r}, only {', '.join(choices.values)}"


def timeouts_mistake(timeouts: object) -> str | None:
    """Return the first mistake in a deployment's timeouts, or None."""
    if not isinstance(timeouts, dict):
        return 'must be a table of names and milliseconds, such as {"connect_ms": 5000}'
    for name, ms in timeouts.items():
        if name not in TIMEOUTS:
            return f"{name!r} is none of {', '.join(TIMEOUTS)}"
        if type(ms) is not int or not 1 <= ms <= MAX_TIMEOUT_MS:
            return f"{name} must be a whole number of milliseconds between 1 and {MAX_TIMEOUT_MS}"
    return None


def extra_parameters_mistake(names: object) -> str | None:
    """Return the first mistake in a deployment's extra parameters, or None."""
    if not isinstance(names, list):
        return "must be a list of names"
    known = ENGINE_PARAMETERS | {CUSTOM_TOOLS, SERVICE_TIER, COMPLETION_LIMIT}
    if unknown := [name for name in names if not isinstance(name, str) or name not in known]:
        return f"{unknown[0]!r} is none of the engine parameters that can be passed on, such as top_k"
    return None


class ModelKind(models.TextChoices):
    """The kind of requests that a model answers; a protocol names the one that it needs."""

    CHAT = "chat"
    EMBEDDINGS = "embeddings"

    @property
    def requests(self) -> str:
        """Return the requests that its models answer, in words."""
        return _KINDS[self].requests

    @property
    def has_own_usage_route(self) -> bool:
        """Return whether usage of its models has its own route, and is not among completions.

        Its models stay in the catalog for ever, because the books do not repeat their kind.
        """
        return _KINDS[self].has_own_usage_route

    @property
    def may_fall_back(self) -> bool:
        """Return whether another model may answer in its place."""
        return _KINDS[self].may_fall_back


class _Kind(NamedTuple):
    requests: str
    has_own_usage_route: bool
    may_fall_back: bool


_KINDS: Mapping[ModelKind, _Kind] = {
    ModelKind.CHAT: _Kind("chat and text completions", has_own_usage_route=False, may_fall_back=True),
    # Vectors of two models can't be compared.
    ModelKind.EMBEDDINGS: _Kind("embeddings", has_own_usage_route=True, may_fall_back=False),
}
assert set(_KINDS) == set(ModelKind), "a kind of models has no row"


def aliases_mistake(aliases: object, taken: Collection[str]) -> str | None:
    """Return the first mistake in a model's aliases, or None; `taken` has all other names of models."""
    if not isinstance(aliases, list) or len(aliases) > MAX_ALIASES:
        return f"must be a list of at most {MAX_ALIASES} names"
    for number, alias in enumerate(aliases):
        if not isinstance(alias, str) or not re.match(MODEL_NAME_PATTERN, alias):
            return f"{alias!r} is no name of a model: use 1 to 128 ASCII letters, digits or . _ : / @ + -"
        if alias in taken or alias in aliases[:number]:
            return f"{alias!r} is already the id or an alias of a model"
    return None


def fallbacks_mistake(lists: Sequence[tuple[str, Sequence[str]]], kinds: Mapping[str, str]) -> str | None:
    """Return the first mistake in a project's fallbacks, or None; `kinds` maps models to their kinds."""
    if len(lists) > MAX_ALIASES:
        return f"There are more than {MAX_ALIASES} lines."
    if len({name for name, _ in lists}) < len(lists):
        return "There are two lines for one model."
    mistakes = (_fallback_mistake(name, others, kinds) for name, others in lists)
    return next(filter(None, mistakes), None)


def _fallback_mistake(name: str, others: Sequence[str], kinds: Mapping[str, str]) -> str | None:
    named = [name, *others]
    if unknown := [each for each in named if each not in kinds]:
        return f"There is no model with the name {unknown[0]!r}."
    if alone := [each for each in named if not ModelKind(kinds[each]).may_fall_back]:
        return f"{alone[0]!r} is for {ModelKind(kinds[alone[0]])}: no other model can answer in its place."
    if not 0 < len(others) <= caps.MAX_FALLBACKS:
        return f"{name!r} has {len(others)} fallback models; 1 to {caps.MAX_FALLBACKS} are allowed."
    if len(set(named)) < len(named):
        return f"The line of {name!r} has a model twice."
    return None


def shared_alias(models: Iterable["ServedModel"]) -> tuple[str, str] | None:
    """Return the first model whose aliases clash with other names, and the mistake; None if none does."""
    rows = list(models)
    taken = {row.pk for row in rows}
    for row in rows:
        if mistake := aliases_mistake(row.aliases, taken):
            return row.pk, mistake
        taken.update(row.aliases)
    return None


class OnDisconnect(models.TextChoices):
    """The fate of a generation after its client has left."""

    CANCEL = "cancel"
    DRAIN = "drain"
    CONTINUE = "continue"


class Streaming(models.TextChoices):
    """The requests for which a deployment sends a stream; for all others it sends one JSON document."""

    ALWAYS = "always"
    WITHOUT_LOGPROBS = "without_logprobs"
    AS_REQUESTED = "as_requested"
    NEVER = "never"


class ServedModel(models.Model):
    """A model by the name that clients send; it is served only with a price."""

    id = models.CharField(primary_key=True, max_length=128, validators=[model_name])
    kind = models.CharField(
        max_length=16,
        choices=ModelKind.choices,
        default=ModelKind.CHAT,
        db_default=ModelKind.CHAT,
        help_text=f"The requests that it answers: {', or '.join(kind.requests for kind in ModelKind)}. It "
        "can't change: the model's usage is reported by it.",
    )
    context_window = models.PositiveIntegerField(default=128_000, validators=_positive, help_text="Tokens.")
    max_output_tokens = models.PositiveIntegerField(
        default=16_384, validators=_positive, help_text="Maximum and default for each answer."
    )
    owned_by = models.CharField(max_length=MAX_OWNER_CHARS, default="chatapi")
    aliases = models.JSONField(
        default=list, db_default=[], blank=True, help_text="Other names that clients may send."
    )
    deprecated_on = models.DateField(
        null=True, blank=True, help_text="From this day on it is deprecated; answers say so in a header."
    )
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        verbose_name = "model"

    def __str__(self) -> str:
        return self.id

    def clean(self) -> None:
        """Refuse a maximal output that is larger than the context window."""
        # A field that is not a number has been refused already, and is None here.
        if self.max_output_tokens and self.context_window and self.max_output_tokens > self.context_window:
            raise ValidationError(
                {"max_output_tokens": f"Must be at most the context window, {self.context_window}."}
            )


class Deployment(models.Model):
    """One way to serve a model: an engine, with its upstream's URL and model name if it is remote."""

    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="deployments")
    name = models.CharField(max_length=MAX_NAME_CHARS, help_text="Unique within its model.")
    engine = models.CharField(max_length=32, choices=Engine.choices)
    # Not a URLField: its validator refuses host names of a cluster, such as http://vllm:8000/v1.
    base_url = models.CharField(
        max_length=MAX_BASE_URL_CHARS,
        blank=True,
        help_text="Up to and including /v1, such as http://127.0.0.1:8080/v1.",
    )
    upstream_model = models.CharField(
        max_length=MAX_NAME_CHARS,
        blank=True,
        help_text="The model's name at the upstream; empty: the served name.",
    )
    api_key_env = models.CharField(
        max_length=128, blank=True, help_text="The environment variable that holds the upstream's key."
    )
    # `upstream_keys.py` reads and writes it; no file has it.
    encrypted_api_key = models.BinaryField(
        null=True, blank=True, help_text="The upstream's key, if it was entered in the admin."
    )
    weight = models.PositiveIntegerField(
        default=1, validators=_positive, help_text="The share among deployments of one priority."
    )
    priority = models.PositiveIntegerField(
        default=0, validators=[_at_most], help_text="Lower ones are tried first."
    )
    max_concurrent = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=_positive,
        help_text="Requests in flight, of all workers together; empty: no limit.",
    )
    retries = models.PositiveSmallIntegerField(
        default=USUAL_RETRIES,
        db_default=USUAL_RETRIES,
        validators=[MaxValueValidator(MAX_RETRIES)],
        help_text=f"How often a request that failed may be sent again, 0 to {MAX_RETRIES}.",
    )
    on_disconnect = models.CharField(max_length=8, choices=OnDisconnect.choices, default=OnDisconnect.CANCEL)
    streaming = models.CharField(
        max_length=16,
        choices=Streaming.choices,
        default=Streaming.ALWAYS,
        db_default=Streaming.ALWAYS,
        help_text="When the deployment is asked for a stream. Clients can stream in any case.",
    )
    timeouts = models.JSONField(default=dict, blank=True)
    extra_parameters = models.JSONField(
        default=list, blank=True, help_text="Request parameters beyond OpenAI's that it may receive."
    )
    allow_remote_media = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Allow image URLs (the provider downloads them).",
    )
    is_active = models.BooleanField(default=True)

    class Meta:
        ordering = ["model_id", "priority", "name"]
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="deployment_name_in_model")]

    def __str__(self) -> str:
        return f"{self.model_id} by {self.name}"

    def clean(self) -> None:
        """Refuse values that no engine can use."""
        mistakes = {
            "base_url": base_url_mistake(self.engine, self.base_url),
            "api_key_env": api_key_env_mistake(self.api_key_env) or self._two_keys_mistake(),
            "streaming": streaming_mistake(self.engine, self.streaming),
            "timeouts": timeouts_mistake(self.timeouts),
            "extra_parameters": extra_parameters_mistake(self.extra_parameters),
        }
        if found := {field: mistake for field, mistake in mistakes.items() if mistake}:
            raise ValidationError(found)

    def _two_keys_mistake(self) -> str | None:
        if self.api_key_env and self.encrypted_api_key:
            return (
                "must be empty, because an API key was entered for this deployment; remove that one first, "
                "on the deployment's page in the admin"
            )
        return None


class StoredResponse(models.Model):
    """A response of a project that stores them for days; `response_store.py` reads and writes its content."""

    id = models.UUIDField(primary_key=True, editable=False)
    """The id of the generation."""
    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="+", db_index=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="+", db_index=False)
    is_test = models.BooleanField()
    model = models.CharField(max_length=128)
    ended_at = models.DateTimeField()
    size_bytes = models.PositiveIntegerField()
    content = models.BinaryField(help_text="Encrypted: its request's state, and its deltas.")

    class Meta:
        default_permissions = ("view",)
        permissions = [("read_storedresponse", "Can read the content of stored responses")]
        indexes = [
            models.Index(fields=["project", "ended_at"], name="stored_responses_by_end"),
            models.Index(fields=["organization", "size_bytes"], name="stored_responses_by_size"),
        ]

    def __str__(self) -> str:
        return public_id(self.pk, "responses", "")
