"""Reads the environment; an unreadable value is one line that names its variable."""

import difflib
import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

DATABASE_SCHEMES = ("sqlite", "postgres", "postgresql")
# The default ports of mail servers, by the scheme of their URLs.
EMAIL_PORTS = {"smtp": 25, "smtps": 465}
EMAIL_TIMEOUT_S = 10
TRUE, FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
# CHATAPI_KEY is a client's variable in examples; Kubernetes sets the others for a Service named chatapi.
_NO_SETTING = re.compile(r"CHATAPI_KEY|CHATAPI(_\w+)?_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)")
_EXPECTED = {int: "a whole number", bool: f"one of {', '.join([*TRUE, *FALSE])}"}


class Environment(environ.Env):
    """A strict `environ.Env`: CHATAPI_DEBUG=maybe is an error and not false, and errors name the variable."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    def unknown(self, prefix: str) -> dict[str, str]:
        """Return the variables with this prefix that were not read, each with the nearest name or "".

        Call it when all settings are read.
        """
        known = {name.removeprefix(prefix): name for name in self._names if name.startswith(prefix)}
        found = {}
        for name in sorted(set(self.ENVIRON) - self._names):
            if name.startswith(prefix) and not _NO_SETTING.fullmatch(name):
                nearest = difflib.get_close_matches(name.removeprefix(prefix), known, n=1)
                found[name] = known[nearest[0]] if nearest else ""
        return found

    def get_value(
        self, var: str, cast: Any = None, default: Any = environ.Env.NOTSET, parse_default: bool = False
    ) -> Any:
        """Return the variable's value as `cast`. Raises `ImproperlyConfigured`."""
        self._names.add(var)
        text = self.ENVIRON.get(var)
        if cast is bool and text is not None and text.lower() not in TRUE + FALSE:
            raise _unreadable(var, text, bool)
        try:
            # django-environ would take the rest of the value for the name of another variable.
            if text is not None and text.startswith("$"):
                return self.parse_value(text, cast)
            return super().get_value(var, cast, default, parse_default)
        except ValueError:
            raise _unreadable(var, text, cast) from None

    def choice(self, var: str, *, default: str, choices: tuple[str, ...]) -> str:
        """Return one of the `choices`, which may be written in any case. Raises `ImproperlyConfigured`."""
        text: str = self.str(var, default=default)
        for each in choices:
            if each.lower() == text.lower():
                return each
        raise ImproperlyConfigured(f"{var}={text!r} must be one of {', '.join(choices)}.")

    def database(self, var: str, *, default: str) -> dict[str, Any]:
        """Return Django's settings for a database URL; errors don't show its password."""
        url = self.str(var, default=default)
        scheme, separator, _ = url.partition("://")
        if not separator or scheme not in DATABASE_SCHEMES:
            raise ImproperlyConfigured(
                f"{var} must start with sqlite:/// or postgres://, not with {scheme[:20]!r}."
            )
        try:
            database: dict[str, Any] = self.db_url_config(url)
        except ValueError:
            hint = "user and password must be percent-encoded, and the port a number"
            raise ImproperlyConfigured(f"{var} is not a database URL: {hint}.") from None
        is_named = database["NAME"] or "service" in database.get("OPTIONS", {})
        if not is_named or database["NAME"] == ":memory:":  # each process would have its own in-memory one
            raise ImproperlyConfigured(
                f"{var} names no database: write sqlite:////folder/file or "
                "postgres://user:password@host/name."
            )
        return database

    def email(self, var: str) -> dict[str, Any]:
        """Return Django's settings for the mail server that a URL names; errors don't show its password."""
        url = self.str(var, default="")
        if url in ("", "console:"):
            name = "console" if url else "dummy"
            return {"EMAIL_BACKEND": f"django.core.mail.backends.{name}.EmailBackend"}
        try:
            server = urlsplit(url)
            port, options = server.port, dict(parse_qsl(server.query, keep_blank_values=True))
        except ValueError:
            raise ImproperlyConfigured(f"{var} is not a URL: its port must be a number.") from None
        if server.scheme not in EMAIL_PORTS or not server.hostname or server.path.strip("/"):
            raise ImproperlyConfigured(
                f"{var} must be smtp://user:password@host:587?tls=starttls, smtps://…, or console:."
            )
        starts_tls = options == {"tls": "starttls"}
        if options and not (starts_tls and server.scheme == "smtp"):
            raise ImproperlyConfigured(f"{var} may only have ?tls=starttls, and only after smtp://.")
        if server.scheme == "smtp" and server.password and not starts_tls:
            raise ImproperlyConfigured(
                f"{var} would send its password in plain text: add ?tls=starttls, or use smtps://."
            )
        return {
            "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
            "EMAIL_HOST": server.hostname,
            "EMAIL_PORT": port or EMAIL_PORTS[server.scheme],
            "EMAIL_HOST_USER": unquote(server.username or ""),
            "EMAIL_HOST_PASSWORD": unquote(server.password or ""),
            "EMAIL_USE_TLS": starts_tls,
            "EMAIL_USE_SSL": server.scheme == "smtps",
            "EMAIL_TIMEOUT": EMAIL_TIMEOUT_S,
        }


def _unreadable(var: str, text: str | None, cast: Any) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{var}={text!r} must be {_EXPECTED.get(cast, 'another value')}.")
