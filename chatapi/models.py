"""The catalog: the models that clients can name, and the deployments that serve them."""

from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models

from chatapi.wire.parameters import ENGINE_PARAMETERS, MODEL_NAME_PATTERN

model_name = RegexValidator(MODEL_NAME_PATTERN, "Use 1 to 128 ASCII letters, digits or . _ : / @ + -")


class Engine(models.TextChoices):
    """The engines that there are; `worker/process.py` has their classes."""

    OPENAI_COMPATIBLE = "openai_compatible", "OpenAI-compatible"
    SANDBOX = "sandbox"


def base_url_mistake(engine: str, base_url: str) -> str | None:
    """What is wrong with a deployment's address, None when it is right."""
    if engine == Engine.SANDBOX:
        return "the sandbox engine has none" if base_url else None
    try:
        url = urlsplit(base_url)
        is_good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        return f'{base_url!r} must be a URL such as "http://127.0.0.1:8080/v1"'
    if url.username or url.password or url.query or url.fragment:
        return "must have no user, password, query or fragment; the upstream's key belongs into the variable that api_key_env names"
    return None


def extra_parameters_mistake(names: object) -> str | None:
    """What is wrong with the parameters that a deployment asks for, None when they are names that can be passed on."""
    if not isinstance(names, list):
        return "must be a list of names"
    unknown = [name for name in names if not isinstance(name, str) or name not in ENGINE_PARAMETERS]
    return f"{unknown[0]!r} is none of the engine parameters that can be passed on, such as top_k" if unknown else None


class OnDisconnect(models.TextChoices):
    """What becomes of a generation whose client has left."""

    CANCEL = "cancel"
    DRAIN = "drain"
    CONTINUE = "continue"


class ServedModel(models.Model):
    """The name that clients send. Without a price it is not served."""

    id = models.CharField(primary_key=True, max_length=128, validators=[model_name])
    context_window = models.PositiveIntegerField(default=128_000, help_text="Tokens.")
    max_output_tokens = models.PositiveIntegerField(default=16_384, help_text="The cap per choice, also when the client names none.")
    owned_by = models.CharField(max_length=100, default="chatapi")
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["id"]
        verbose_name = "model"

    def __str__(self) -> str:
        return self.id


class Deployment(models.Model):
    """One way to serve a model: an engine, and for a remote one the upstream's address and model name."""

    model = models.ForeignKey(ServedModel, on_delete=models.CASCADE, related_name="deployments")
    name = models.CharField(max_length=128, help_text="Unique within its model.")
    engine = models.CharField(max_length=32, choices=Engine.choices)
    # No URLField: its validator refuses the host names of a cluster, such as http://vllm:8000/v1.
    base_url = models.CharField(max_length=500, blank=True, help_text="Up to and including /v1, such as http://127.0.0.1:8080/v1.")
    upstream_model = models.CharField(max_length=128, blank=True, help_text="The model's name at the upstream; empty: the served name.")
    api_key_env = models.CharField(max_length=128, blank=True, help_text="The environment variable that holds the upstream's key.")
    weight = models.PositiveIntegerField(default=1)
    priority = models.PositiveIntegerField(default=0, help_text="Lower ones are tried first.")
    on_disconnect = models.CharField(max_length=8, choices=OnDisconnect.choices, default=OnDisconnect.CANCEL)
    timeouts = models.JSONField(default=dict, blank=True)
    extra_parameters = models.JSONField(default=list, blank=True, help_text="Request parameters beyond OpenAI's that it may receive.")
    allow_remote_media = models.BooleanField(
        default=False, db_default=False, help_text="It may receive addresses of pictures, which the upstream then fetches."
    )
    is_active = models.BooleanField(default=True)

    class Meta:
        ordering = ["model_id", "priority", "name"]
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="deployment_name_in_model")]

    def __str__(self) -> str:
        return f"{self.model_id} by {self.name}"

    def clean(self) -> None:
        """The address must suit the engine, and the parameters must be known."""
        mistakes = {
            "base_url": base_url_mistake(self.engine, self.base_url),
            "extra_parameters": extra_parameters_mistake(self.extra_parameters),
        }
        if found := {field: mistake for field, mistake in mistakes.items() if mistake}:
            raise ValidationError(found)
