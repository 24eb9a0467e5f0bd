"""The system checks of the settings, which run before a process or a command starts.

E001  CHATAPI_DEFAULT_DIALECT is not a dialect
E002  a number is outside of its bounds, `MIN` and `MAX`
E003  the lease is too short for its heartbeat
E004  a Redis URL has a scheme that is not Redis's, or does not name sentinels and primary
E005  CHATAPI_FAILPOINTS names no failpoint
E006  CHATAPI_TRUSTED_PROXIES has a value that is not an IP address or network
E007  CHATAPI_CORS_ORIGINS has a value that is not an origin
E008  CHATAPI_METRICS_TOKEN is easy to guess, or not valid in a header
E009  a secret is easy to guess
E010  CHATAPI_CSRF_TRUSTED_ORIGINS has a value that is not an origin
E011  CHATAPI_DEFAULT_MODEL is empty
E012  CHATAPI_END_USER_HEADER is not a header's name, or names a header that carries a secret
E013  CHATAPI_ALLOWED_HOSTS has a value that is not a host name
E014  a rediss:// URL turns the verification of the server's certificate off
E015  CHATAPI_PATH_PREFIX is not a path, or begins like a route of our own
E016  CHATAPI_STREAMS_URL has a server twice, or too many servers
E017  a variable of OpenTelemetry is wrong, or its packages are not installed
E018  there is a replica, and its URL or DATABASE_URL is not a PostgreSQL URL
E019  a variable of Stripe is wrong or missing, or its package is not installed
E020  CHATAPI_EMAIL_FROM is not a mail address, though there is a mail server
E021  CHATAPI_PUBLIC_URL is not an origin, or is missing while visitors can choose the host of mailed links
E022  CHATAPI_SIGN_UP needs mail to confirm addresses, or CHATAPI_SIGN_UP_DOMAINS is wrong or empty
E023  CHATAPI_CLIENT_CERTIFICATE_HEADER is not a header's name, or names a header that carries a secret
W001  a variable begins with CHATAPI_ and is not a setting
"""

from collections.abc import Sequence

from django.core import checks

CHECK_TAG = "chatapi"
MISSPELT = "chatapi.W001"


def wrong_values(
    variable: str, wrong: Sequence[str], what: str, hint: str, number: str
) -> list[checks.CheckMessage]:
    """Return an error for each wrong value of a list."""
    return [
        checks.Error(f"{variable}: {value!r} is {what}.", hint=hint, id=f"chatapi.{number}")
        for value in wrong
    ]
