"""The form field of a key's IP addresses: one address or network per line."""

from typing import Any

from django import forms

from accounts import allowed_ips

EXAMPLE = "203.0.113.7\n198.51.100.0/24\n2001:db8::/32"


class AllowedIPsField(forms.Field):
    """A list of IP addresses and networks as text. Raises `ValidationError` that names the wrong entry."""

    def __init__(self, **options: Any) -> None:
        super().__init__(label="Allowed IP addresses", required=False, **options)

    def prepare_value(self, value: Any) -> Any:
        """Return the stored list as lines; a text that was sent stays as it is."""
        return "\n".join(value) if isinstance(value, list) else value

    def to_python(self, value: Any) -> list[str]:
        return allowed_ips.normalized(allowed_ips.entries(value or ""))

    def name_own_ip(self, ip: str | None) -> None:
        """Say in the help text from where the person fills in the form, if that is known."""
        text = (
            f"One address or network per line, {allowed_ips.MOST_ENTRIES} at most, IPv4 or IPv6. Leave empty "
        )
        text += "to allow every address."
        self.help_text = text if ip is None else f"{text} You are at {ip}."
