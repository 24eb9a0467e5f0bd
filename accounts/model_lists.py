"""Lists of models: what a project or a key can use."""

from collections.abc import Collection

from django.core.exceptions import ValidationError
from django.db import models


class ModelsMode(models.TextChoices):
    """What a project's list of models means."""

    ALL = "", "all models"
    ALLOW_LIST = "allow_list", "only the listed models"
    DENY_LIST = "deny_list", "all but the listed models"


def list_allows(mode: str, listed: Collection[str], model: str) -> bool:
    return mode == ModelsMode.ALL or (model in listed) == (mode == ModelsMode.ALLOW_LIST)


def validate_model_names(names: object) -> None:
    """Raise `ValidationError` unless it is a list of names. The models need not exist yet."""
    if not isinstance(names, list) or not all(
        isinstance(name, str) and 0 < len(name) <= 128 for name in names
    ):
        raise ValidationError("This must be a list of models' names.")
