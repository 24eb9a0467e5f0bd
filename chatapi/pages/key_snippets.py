"""Code for a key's first request, in curl, Python and JavaScript, for each kind of model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings

from accounts.model_lists import list_allows
from accounts.models import APIKey, KeyScope
from chatapi import catalog
from chatapi.model_kinds import MODEL_KINDS
from chatapi.models import ModelKind
from chatapi.snippets import written

_WHO_AM_I = """\
curl {origin}/v1/key -H "Authorization: Bearer {secret}"
"""


@dataclass(frozen=True, slots=True)
class Snippet:
    """Code to paste."""

    id: str
    title: str
    text: str


def usable_models(row: APIKey) -> dict[ModelKind, str]:
    """Return a served model of each kind that the key may use, preferably the default model."""
    allowed, project = set(row.allowed_models), row.project
    served = sorted(
        # False sorts before True, so the default model comes first, and other models of the sandbox last.
        (model.id != settings.DEFAULT_MODEL, model.is_sandbox, model.id, ModelKind(model.kind))
        for model in catalog.load().values()
        if model.is_listed
        and (not allowed or model.id in allowed)
        and list_allows(project.models_mode, project.listed_models, model.id)
    )
    # The last one of each kind is kept, so the preferred one comes last.
    return {kind: model for *_, model, kind in reversed(served)}


def snippets(row: APIKey, secret: str, origin: str, models: Mapping[ModelKind, str]) -> Sequence[Snippet]:
    """Return code for each kind of model; only a look-up of the key if it can't call any model."""

    def filled(text: str, model: str) -> str:
        return written(text, origin=origin, key=secret, model=model)

    may_complete = not row.scopes or KeyScope.COMPLETIONS in row.scopes
    if not models or not may_complete:
        return [Snippet("curl", "curl", filled(_WHO_AM_I, ""))]
    return [
        Snippet(each.id, f"{api.name} with {each.title}", filled(each.text, models[kind]))
        for kind in ModelKind
        if kind in models
        for api in MODEL_KINDS[kind].apis
        for each in api.code
        if each.title in api.on_key_page
    ]
