"""The forms of models, of projects and their aliases, and of deployments, with fields instead of JSON."""

import re
from collections.abc import Callable
from typing import Any

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import RegexValidator
from django.db.models import Q
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
    UnfoldBooleanSwitchWidget,
)

from accounts import end_users
from accounts.models import Project
from accounts.pages.admin_mixins import ConstrainedForm, OwnChangesForm
from chatapi import upstream_keys
from chatapi.models import (
    MAX_TIMEOUT_MS,
    TIMEOUTS,
    Deployment,
    Engine,
    ServedModel,
    aliases_mistake,
    extra_parameters_mistake,
    fallbacks_mistake,
    shared_alias,
)
from chatapi.pages.key_forms import model_choices
from chatapi.pages.upstream_models import UpstreamModelInput
from chatapi.worker.engines import Timeouts
from usage.models import BudgetLimit, Scope

_BETWEEN_NAMES = re.compile(r"[\s,]+")
_USUAL = Timeouts()
ALIASES_EXAMPLE = "claude-haiku-4-5 = llama-3.1-8b"
FALLBACKS_EXAMPLE = "llama-3.1-70b = llama-3.1-8b, gpt-5.6"


class NamesField(forms.CharField):
    """Names separated by spaces or commas; its value is a list."""

    def __init__(self, mistake: Callable[[list[str]], str | None], placeholder: str, **kwargs: Any) -> None:
        """Make a text field; `mistake` returns what is wrong with the names."""
        super().__init__(
            widget=UnfoldAdminTextInputWidget(attrs={"placeholder": placeholder}),
            max_length=16_000,
            required=False,
            **kwargs,
        )
        self.mistake = mistake

    def to_python(self, value: Any) -> Any:
        """Return distinct names; raises `ValidationError` for a mistake in them."""
        names = list(
            # A dict keeps the order in which the names were typed.
            dict.fromkeys(name for name in _BETWEEN_NAMES.split(super().to_python(value) or "") if name)
        )
        if mistake := self.mistake(names):
            raise ValidationError(mistake)
        return names

    def run_validators(self, value: Any) -> None:
        """Validate the text's length; `to_python` has checked the names."""
        super().run_validators(" ".join(value))

    def prepare_value(self, value: Any) -> Any:
        """Return the list as text, and text as it was typed."""
        return " ".join(map(str, value)) if isinstance(value, list) else value


def _milliseconds(label: str, usual_ms: int) -> forms.IntegerField:
    return forms.IntegerField(
        label=f"{label} (ms)",
        required=False,
        min_value=1,
        max_value=MAX_TIMEOUT_MS,
        widget=UnfoldAdminIntegerFieldWidget(attrs={"placeholder": usual_ms}),
        help_text=f"Empty: {usual_ms:,}.",
    )


class ServedModelForm(OwnChangesForm, ConstrainedForm):
    """A model, with its other names."""

    aliases = NamesField(
        lambda names: aliases_mistake(names, ()),
        "claude-haiku-4-5 gpt-5.6",
        help_text="Other names that clients may send for this model, separated by spaces. Receipts show "
        "them as “Requested as”.",
    )

    class Meta:
        model = ServedModel
        fields = ["id", "context_window", "max_output_tokens", "aliases", "deprecated_on", "owned_by"]
        fields += ["is_active"]
        help_texts = {
            "max_output_tokens": "Maximum and default for each answer.",
            "deprecated_on": "Empty: not deprecated. Answers announce the day in headers from now on. The "
            "model is served as long as it is active.",
        }

    def clean(self) -> dict[str, Any]:
        """Refuse names that other models have, and an id that is another model's alias."""
        data = self.cleaned_data
        aliases = (data | self.kept()).get("aliases", [])
        own = ServedModel(pk=data.get("id", self.instance.pk), aliases=aliases)
        # This model comes last, so that the mistake names it.
        if clash := shared_alias([*ServedModel.objects.exclude(pk=own.pk), own]):
            raise ValidationError({"aliases" if clash[0] == own.pk else NON_FIELD_ERRORS: clash[1]})
        return data


class ProjectModelsForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """The base of the forms of a project: its aliases and fallbacks of models, as lines of text."""

    class Meta:
        model = Project
        fields: list[str] = []
        help_texts = {
            "counts_end_users": "Usage and budgets are kept for each person whom requests name in "
            "“safety_identifier” or “user”, from now on. Needed for limits of end users, and for “end "
            "user” on the Overview.",
            "hashes_end_users": "Names are replaced by a digest (sha256:…) before they are stored. You can "
            "still search for a person whose name you know. Limits of single end users stay; budgets of all "
            "others begin anew. When it is switched off, limits of single end users have to be set again for "
            "their names.",
            "stores_metadata": "The pairs in the parameter “metadata” are stored with each request. You can "
            "filter Requests by them, and exports contain them.",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        aliases = self.instance.model_aliases
        self.initial["model_aliases"] = "\n".join(f"{name} = {model}" for name, model in aliases.items())
        lists = self.instance.model_fallbacks
        self.initial["model_fallbacks"] = "\n".join(
            f"{name} = {', '.join(models)}" for name, models in lists.items()
        )

    def rename_limited_end_users(self) -> None:
        """Hash the names of end users that have their own limits, if the project hashes names from now on."""
        project = self.instance
        if "hashes_end_users" in self.changed_data and project.hashes_end_users:
            of_budgets = BudgetLimit.objects.filter(scope=Scope.END_USER).values("scope_id")
            is_limited = Q(rate_limits__isnull=False) | Q(pk__in=of_budgets)
            end_users.hash_names(project.pk, project.end_users.filter(is_limited).distinct())

    def clean_stores_responses_days(self) -> int:
        """Return 0 for an empty field; raises `ValidationError` for days that the organization forbids."""
        days: int = self.cleaned_data["stores_responses_days"] or 0
        owner = self.cleaned_data.get("organization")  # of a new project; that of others does not change
        if owner is None and self.instance.organization_id is not None:
            owner = self.instance.organization
        if days and "stores_responses_days" in self.changed_data and owner and owner.forbids_stored_responses:
            raise ValidationError("Your organization forbids storing responses for days.")
        return days

    def clean_model_aliases(self) -> dict[str, str]:
        """Return the models by alias; raises `ValidationError` for a name that a model has already, and for
        an unknown model.
        """
        pairs = _pairs(self.cleaned_data["model_aliases"], ALIASES_EXAMPLE)
        known = dict(ServedModel.objects.values_list("pk", "aliases"))
        taken = known.keys() | {alias for aliases in known.values() for alias in aliases}
        if mistake := aliases_mistake([name for name, _ in pairs], taken):
            raise ValidationError(mistake)
        if unknown := [model for _, model in pairs if model not in known]:
            raise ValidationError(f"There is no model with the id {unknown[0]!r}.")
        return dict(pairs)

    def clean_model_fallbacks(self) -> dict[str, list[str]]:
        """Return the fallbacks of each model, by its name; raises `ValidationError` for a mistake."""
        pairs = _pairs(self.cleaned_data["model_fallbacks"], FALLBACKS_EXAMPLE)
        lists = [(name, [each for each in _BETWEEN_NAMES.split(models) if each]) for name, models in pairs]
        kinds: dict[str, str] = {}
        for row in ServedModel.objects.all():
            kinds |= dict.fromkeys([row.pk, *row.aliases], row.kind)
        for alias, model in self.cleaned_data.get("model_aliases", {}).items():
            kinds[alias] = kinds[model]
        if mistake := fallbacks_mistake(lists, kinds):
            raise ValidationError(mistake)
        return dict(lists)


class ProjectForm(OwnChangesForm, ProjectModelsForm, ConstrainedForm):
    """A project, with its aliases and fallbacks of models."""

    model_aliases = forms.CharField(
        required=False,
        max_length=32_000,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "placeholder": ALIASES_EXAMPLE}),
        help_text="Other names for models, for the keys of this project only. One line each: “name = model”. "
        "An empty field means that only the models' own names and aliases work.",
    )

    model_fallbacks = forms.CharField(
        required=False,
        max_length=32_000,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 3, "placeholder": FALLBACKS_EXAMPLE}),
        help_text="Models that answer, in order, if all deployments of another one fail. One line each: "
        "“model = model, model”. A request with the parameter “models” has its own list.",
    )

    listed_models = forms.MultipleChoiceField(
        required=False,
        widget=UnfoldAdminCheckboxSelectMultipleWidget,
        help_text="For “only the listed models” and “all but the listed models”.",
    )

    class Meta(ProjectModelsForm.Meta):
        fields = ["organization", "name", "is_active", "models_mode", "listed_models", "model_aliases"]
        fields += ["model_fallbacks"]
        fields += ["hashes_end_users"]
        fields += ["counts_end_users", "stores_metadata", "stores_responses_days"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if field := self.fields.get("listed_models"):  # people who may only view have no fields
            field.choices = model_choices(self.instance.listed_models)  # type: ignore[attr-defined]


def _pairs(text: str, example: str) -> list[list[str]]:
    """Return both sides of each line `name = value`; raises `ValidationError` for any other line."""
    lines = [line for line in text.splitlines() if line.strip()]
    pairs = [[part.strip() for part in line.split("=", 1)] for line in lines]
    if wrong := [line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2]:
        raise ValidationError(f"“{wrong[0]}” has no “=”. Write each line like “{example}”.")
    return pairs


class DeploymentForm(OwnChangesForm, ConstrainedForm):
    """A deployment, with a field for each of its timeouts, and one for its upstream's key."""

    api_key = forms.CharField(
        label="API key",
        required=False,
        max_length=4_096,
        validators=[RegexValidator(r"^[!-~]+\Z", "Use ASCII letters, digits and signs, without spaces.")],
        # Browsers must not offer the person's own password.
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
        help_text="Stored encrypted and never shown again. Or name a variable of the workers.",
    )
    removes_api_key = forms.BooleanField(
        label="Remove the stored API key", required=False, widget=UnfoldBooleanSwitchWidget
    )
    extra_parameters = NamesField(
        extra_parameters_mistake,
        "top_k min_p",
        help_text="Request parameters beyond OpenAI's that it may receive, separated by spaces. "
        "Every deployment of this model must accept them.",
    )
    connect_ms = _milliseconds("Connect", _USUAL.connect_ms)
    first_delta_ms = _milliseconds("First token", _USUAL.first_delta_ms)
    between_deltas_ms = _milliseconds("Between tokens", _USUAL.between_deltas_ms)
    total_ms = _milliseconds("Total", _USUAL.total_ms)

    class Meta:
        model = Deployment
        fields = [
            "model", "name", "engine", "base_url", "upstream_model", "api_key_env", "is_active",
            "priority", "weight", "max_concurrent", "retries", "on_disconnect", "streaming",
            "extra_parameters", "allow_remote_media",
        ]  # fmt: skip
        labels = {
            "base_url": "Base URL",
            "upstream_model": "Upstream's model",
            "api_key_env": "Environment variable with the API key",
            "allow_remote_media": "Allow image URLs",
        }
        help_texts = {"allow_remote_media": "The provider downloads the images.", "api_key_env": ""}
        widgets = {"upstream_model": UpstreamModelInput}

    class Media:
        css = {"all": ["chatapi/upstream_models.css"]}
        js = ["chatapi/upstream_models.js"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        timeouts = self.instance.timeouts
        # The column is JSON, and a file or a shell may have written anything; a bad value must not break
        # the page where it is corrected.
        if isinstance(timeouts, dict):
            self.initial = {**{name: timeouts[name] for name in TIMEOUTS if name in timeouts}, **self.initial}
        if self.instance._state.adding:
            self.initial.setdefault("engine", Engine.OPENAI_COMPATIBLE)
        if "api_key" in self.fields:  # people who may only view have no fields
            self._say_what_is_stored()
        if "upstream_model" in self.fields:
            self.fields["upstream_model"].widget.deployment_id = self.instance.pk

    def _say_what_is_stored(self) -> None:
        key = upstream_keys.entered(self.instance)
        if key == "":
            self.fields["removes_api_key"].widget = forms.HiddenInput()
        else:
            self.fields["api_key"].help_text = (
                "A key is stored. Leave this empty to keep it."
                if key
                else f"{upstream_keys.LOST} Enter it again."
            )

    def clean(self) -> dict[str, Any]:
        """Refuse two sources of a key; write the timeouts, and the removal of a key, into the row."""
        data = self.cleaned_data
        known = data | self.kept()
        if data.get("api_key") and (known.get("api_key_env") or data.get("removes_api_key")):
            self.add_error(
                "api_key", "Enter a key, name a variable or remove the stored key: only one of these."
            )
        if data.get("removes_api_key"):
            self.instance.encrypted_api_key = None
        # The others are those of the row: another person may have changed them meanwhile.
        ours = [name for name in TIMEOUTS if self.instance._state.adding or name in self.changed_data]
        found = self.instance.timeouts if isinstance(self.instance.timeouts, dict) else {}
        timeouts = {**found, **{name: data.get(name) for name in ours}}
        self.instance.timeouts = {name: timeouts[name] for name in TIMEOUTS if timeouts.get(name) is not None}
        return data

    def changed_columns(self) -> set[str]:
        """Add the columns that fields of other names change."""
        columns = super().changed_columns()
        columns |= {"timeouts"} if {*TIMEOUTS} & {*self.changed_data} else set()
        return columns | ({"encrypted_api_key"} if self.cleaned_data.get("removes_api_key") else set())

    def _save_m2m(self) -> None:
        super()._save_m2m()  # type: ignore[misc]  # django-stubs leave this hook out
        # Here, because only a saved row has the id to which its encrypted key is bound.
        if key := self.cleaned_data.get("api_key"):
            upstream_keys.enter(self.instance, key)
