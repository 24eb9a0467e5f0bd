"""The form of a deployment, with fields instead of JSON."""

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from accounts.pages.admin_mixins import ConstrainedForm
from chatapi.models import MAX_TIMEOUT_MS, TIMEOUTS, Deployment, extra_parameters_mistake
from chatapi.worker.engines import Timeouts

_BETWEEN_NAMES = re.compile(r"[\s,]+")
_USUAL = Timeouts()


class ParametersField(forms.CharField):
    """Names of parameters, separated by spaces or commas; its value is a list."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            widget=UnfoldAdminTextInputWidget(attrs={"placeholder": "top_k min_p"}),
            max_length=4_000,
            **kwargs,
        )

    def to_python(self, value: Any) -> Any:
        """Return distinct names; raises `ValidationError` for one that must not be forwarded."""
        names = list(
            dict.fromkeys(name for name in _BETWEEN_NAMES.split(super().to_python(value) or "") if name)
        )
        if mistake := extra_parameters_mistake(names):
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


class DeploymentForm(ConstrainedForm):
    """A deployment, with a field for each of its timeouts."""

    extra_parameters = ParametersField(
        required=False,
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
            "priority", "weight", "on_disconnect", "streaming", "extra_parameters",
            "allow_remote_media",
        ]  # fmt: skip
        labels = {
            "base_url": "Base URL",
            "upstream_model": "Upstream's model",
            "api_key_env": "Environment variable with the API key",
            "allow_remote_media": "Allow image URLs",
        }
        help_texts = {"allow_remote_media": "The provider downloads the images.", "api_key_env": ""}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        timeouts = self.instance.timeouts
        if isinstance(timeouts, dict):
            self.initial = {**{name: timeouts[name] for name in TIMEOUTS if name in timeouts}, **self.initial}

    def clean(self) -> dict[str, Any]:
        data = self.cleaned_data
        self.instance.timeouts = {name: data[name] for name in TIMEOUTS if data.get(name) is not None}
        return data
