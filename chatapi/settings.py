"""All settings, only from the environment. README lists the variables and defaults; `checks/` checks them."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from chatapi import local_secrets
from chatapi.environment import Environment
from chatapi.pages.theme import THEME
from chatapi.serving import embedded_valkey

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment()

# ---- state on disk: SQLite, the embedded Valkey's data, generated secrets
STATE_DIR = Path(env.str("CHATAPI_STATE_DIR", default=str(BASE_DIR / "var"))).resolve()
if not all(name in env.ENVIRON for name in local_secrets.NAMES):
    env.read_env(str(local_secrets.ensure(STATE_DIR)))

SECRET_KEY = env.str("CHATAPI_SECRET_KEY")
KEY_PEPPER = env.str("CHATAPI_KEY_PEPPER")
DEBUG = env.bool("CHATAPI_DEBUG", default=False)
ALLOWED_HOSTS = env.list("CHATAPI_ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CHATAPI_CSRF_TRUSTED_ORIGINS", default=[])
PATH_PREFIX = env.str("CHATAPI_PATH_PREFIX", default="")

# ---- database: SQLite (WAL, IMMEDIATE) by default, PostgreSQL (pooled) in production; a replica for reports
DATABASES = {
    "default": env.database("DATABASE_URL", default=f"sqlite:///{quote(str(STATE_DIR / 'chatapi.sqlite3'))}")
}
if REPLICA_DATABASE_URL := env.str("CHATAPI_REPLICA_DATABASE_URL", default=""):
    DATABASES["replica"] = env.database("CHATAPI_REPLICA_DATABASE_URL", default="")
    DATABASE_ROUTERS = ["usage.database.replica.Router"]
DATABASE_TIMEOUT_MS = env.int("CHATAPI_DATABASE_TIMEOUT_MS", default=5_000)
DATABASE_POOL_SIZE = env.int("CHATAPI_DATABASE_POOL_SIZE", default=8)
for alias, database in DATABASES.items():
    if database["ENGINE"].endswith("sqlite3"):
        database["OPTIONS"] = {
            # A deferred transaction that turns into a writer fails with "database is locked" instead of
            # waiting.
            "transaction_mode": "IMMEDIATE",
            "timeout": DATABASE_TIMEOUT_MS / 1000,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=134217728;",
        }
        continue
    database["ENGINE"] = "usage.database.postgresql"
    timeouts = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    parameters = {timeout: str(DATABASE_TIMEOUT_MS) for timeout in timeouts}
    # Compiling the sums of a page takes half a second, and computing them a tenth of one.
    parameters["jit"] = "off"
    own: dict[str, Any]
    if alias == "default":
        # A commit that a client has seen must survive a crash under any configuration of the server.
        parameters["synchronous_commit"] = "on"
        wait_s = DATABASE_TIMEOUT_MS / 1000
        # After `reconnect_timeout` the next request tries again. Else the pool, which doubles the pause after
        # each attempt, would make the requests after a long outage wait as long as the outage was.
        pool = {"min_size": 1, "max_size": DATABASE_POOL_SIZE, "timeout": wait_s, "reconnect_timeout": wait_s}
        own = {"pool": pool}
    else:
        parameters["default_transaction_read_only"] = "on"
        # Without a pool, which would wait for a replica that is away.
        own = {"connect_timeout": 2}
    given = database.get("OPTIONS", {})  # from the URL, such as ?sslmode=require
    # Of two values of a parameter, PostgreSQL takes the later one.
    options = [given.get("options", ""), *(f"-c {name}={value}" for name, value in parameters.items())]
    database["OPTIONS"] = {**given, **own, "options": " ".join(options).strip()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# ---- Redis or Valkey: Celery's broker and the delta streams; `serve` starts an embedded one without a URL
REDIS_URL = env.str("REDIS_URL", default=embedded_valkey.url(STATE_DIR))
BROKER_URL = env.str("CHATAPI_BROKER_URL", default=REDIS_URL)
STREAMS_URL = env.str("CHATAPI_STREAMS_URL", default=REDIS_URL)
REDIS_KEY_PREFIX = env.str("CHATAPI_REDIS_KEY_PREFIX", default="chatapi:")
EMBEDDED_VALKEY = not any(
    name in env.ENVIRON for name in ("REDIS_URL", "CHATAPI_BROKER_URL", "CHATAPI_STREAMS_URL")
)

# ---- the service
DEFAULT_DIALECT = env.str("CHATAPI_DEFAULT_DIALECT", default="opentoken")
DEFAULT_MODEL = env.str("CHATAPI_DEFAULT_MODEL", default="sandbox")
HIDE_SANDBOX_MODELS = env.bool("CHATAPI_HIDE_SANDBOX_MODELS", default=False)
WORKER_CONCURRENCY = env.int("CHATAPI_WORKER_CONCURRENCY", default=4_000)
MAX_OPEN_GENERATIONS = env.int("CHATAPI_MAX_OPEN_GENERATIONS", default=1_020)
MAX_BODY_BYTES = env.int("CHATAPI_MAX_BODY_BYTES", default=8 * 1024 * 1024)
MAX_CONNECTIONS = env.int("CHATAPI_MAX_CONNECTIONS", default=30_000)
MAX_CONNECTIONS_PER_ADDRESS = env.int("CHATAPI_MAX_CONNECTIONS_PER_ADDRESS", default=8_192)
KEY_CACHE_MS = env.int("CHATAPI_KEY_CACHE_MS", default=1_000)
FAILED_AUTHENTICATIONS_PER_MINUTE = env.int("CHATAPI_FAILED_AUTHENTICATIONS_PER_MINUTE", default=100)
TRUSTED_PROXIES = env.list("CHATAPI_TRUSTED_PROXIES", default=[])
CLIENT_CERTIFICATE_HEADER = env.str("CHATAPI_CLIENT_CERTIFICATE_HEADER", default="").lower()
END_USER_HEADER = env.str("CHATAPI_END_USER_HEADER", default="").lower()
CORS_ORIGINS = env.list("CHATAPI_CORS_ORIGINS", default=[])
METRICS_TOKEN = env.str("CHATAPI_METRICS_TOKEN", default="")
LEASE_MS = env.int("CHATAPI_LEASE_MS", default=6_000)
HEARTBEAT_MS = env.int("CHATAPI_HEARTBEAT_MS", default=2_000)
REAPER_MS = env.int("CHATAPI_REAPER_MS", default=1_000)
QUEUE_TTL_MS = env.int("CHATAPI_QUEUE_TTL_MS", default=60_000)
MAX_QUEUE_AGE_MS = env.int("CHATAPI_MAX_QUEUE_AGE_MS", default=30_000)
CANCELLED_TTL_MS = 2 * QUEUE_TTL_MS  # longer than a cancelled generation may wait for a worker
PING_MS = env.int("CHATAPI_PING_MS", default=15_000)
TICKET_TTL_MS = env.int("CHATAPI_TICKET_TTL_MS", default=60_000)
REFUSED_BODY_BYTES_PER_MINUTE = env.int("CHATAPI_REFUSED_BODY_BYTES_PER_MINUTE", default=64 * 1024 * 1024)
STREAM_TTL_MS = env.int("CHATAPI_STREAM_TTL_MS", default=300_000)
STALL_MS = env.int("CHATAPI_STALL_MS", default=30_000)
LAME_DUCK_MS = env.int("CHATAPI_LAME_DUCK_MS", default=5_000)
DRAIN_MS = env.int("CHATAPI_DRAIN_MS", default=25_000)
HUNG_MS = env.int("CHATAPI_HUNG_MS", default=60_000)

# ---- mail: without a server none is sent, and pages do not need it
globals().update(env.email("CHATAPI_EMAIL_URL"))
SENDS_EMAIL = bool(env.str("CHATAPI_EMAIL_URL", default=""))
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.str("CHATAPI_EMAIL_FROM", default="")

PUBLIC_URL = env.str("CHATAPI_PUBLIC_URL", default="")

# ---- webhooks
WEBHOOK_PRIVATE_ADDRESSES = (
    env.choice("CHATAPI_WEBHOOK_PRIVATE_ADDRESSES", default="refuse", choices=("refuse", "allow")) == "allow"
)
# ---- signing up and in (docs/sign-in.md)
SIGN_UP = env.choice(
    "CHATAPI_SIGN_UP", default="invitation", choices=("closed", "invitation", "domain", "open")
)
SIGN_UP_DOMAINS = [domain.lower() for domain in env.list("CHATAPI_SIGN_UP_DOMAINS", default=[])]
OIDC_PRIVATE_ADDRESSES = env.bool("CHATAPI_OIDC_PRIVATE_ADDRESSES", default=False)

# ---- traces, by OpenTelemetry's own variables; its SDK reads the others (docs/tracing.md)
TRACES_ENDPOINT = env.str("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", default="") or env.str(
    "OTEL_EXPORTER_OTLP_ENDPOINT", default=""
)
TRACES_PROTOCOL = (
    env.str("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", default="")
    or env.str("OTEL_EXPORTER_OTLP_PROTOCOL", default="")
    or "http/protobuf"
)
TRACES_SAMPLER = env.str("OTEL_TRACES_SAMPLER", default="") or "parentbased_always_on"
TRACES_SAMPLER_ARG = env.str("OTEL_TRACES_SAMPLER_ARG", default="") or "1.0"
EXPORTS_TRACES = (
    bool(TRACES_ENDPOINT)
    and env.str("OTEL_TRACES_EXPORTER", default="") != "none"
    and env.str("OTEL_SDK_DISABLED", default="").lower() != "true"
)

# ---- payment by Stripe (docs/payment.md)
STRIPE_API_KEY = env.str("CHATAPI_STRIPE_API_KEY", default="")
STRIPE_WEBHOOK_SECRET = env.str("CHATAPI_STRIPE_WEBHOOK_SECRET", default="")
STRIPE_METER = env.str("CHATAPI_STRIPE_METER", default="")
STRIPE_API_URL = env.str("CHATAPI_STRIPE_API_URL", default="https://api.stripe.com")

# ---- tests
FAILPOINTS = env.str("CHATAPI_FAILPOINTS", default="")

# ---- Django
INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "accounts.apps.AdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.usersessions",
    "accounts",
    "accounts.apps.AuditConfig",
    "accounts.apps.SignInConfig",
    "usage",
    "usage.payment",
    "chatapi",
]
MIDDLEWARE = [
    "chatapi.api.middleware.ForwardedMiddleware",
    "chatapi.api.middleware.IdentifyingMiddleware",
    "chatapi.api.middleware.AnyHostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "chatapi.api.middleware.CompressedPagesMiddleware",
    "chatapi.static_files.StaticFilesMiddleware",
    "csp.middleware.CSPMiddleware",
    "chatapi.api.middleware.PagePolicyMiddleware",
    "chatapi.api.middleware.FormAddressMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "accounts.audit.middleware.AuditMiddleware",
    "chatapi.api.own_writes.OwnWritesMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "chatapi.urls"
ASGI_APPLICATION = "chatapi.asgi.application"
APPEND_SLASH = True
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        # Before the theme's templates: the texts of empty lists.
        "DIRS": [BASE_DIR / "chatapi" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
AUTHENTICATION_BACKENDS = ["accounts.role_permissions.RolePermissions"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en"
FORMAT_MODULE_PATH = ["chatapi.formats"]
# Links have the prefix outside of requests, too, such as those of an invitation.
FORCE_SCRIPT_NAME = PATH_PREFIX or None
STATIC_URL = f"{PATH_PREFIX}/static/"
# Served from the installed packages, so that pages work without collectstatic.
STORAGES = {"staticfiles": {"BACKEND": "chatapi.static_files.HashedStorage"}}
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
SESSION_COOKIE_HTTPONLY = True
# Other services of the same host get no cookie of ours.
SESSION_COOKIE_PATH = CSRF_COOKIE_PATH = f"{PATH_PREFIX}/"
MESSAGE_STORAGE = "chatapi.api.message_storage.MessageStorage"
SECURE_COOKIES = env.bool("CHATAPI_SECURE_COOKIES", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_COOKIES
# Sent only over HTTPS, which a trusted proxy reports (ForwardedMiddleware).
SECURE_HSTS_SECONDS = 365 * 24 * 60 * 60 if SECURE_COOKIES else 0
SECURE_PROXY_SSL_HEADER = ("chatapi.scheme", "https")  # no header of a client has this key
SILENCED_SYSTEM_CHECKS = [
    "security.W005",  # HSTS for subdomains: other services may be there without HTTPS
    # The proxy redirects to HTTPS. Here a redirect would break probes, and loop behind a proxy that does not
    # report the scheme.
    "security.W008",
    "security.W021",  # HSTS preloading is the domain owner's decision
]
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

_SELF = ["'self'"]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": _SELF,
        # No page has inline scripts; the admin's theme writes its colours into the page as a style.
        "script-src": ["'self'"],
        "style-src": ["'self'", "'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "object-src": ["'none'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": _SELF,
    }
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["accounts.api.APIKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "EXCEPTION_HANDLER": "chatapi.api.views.error_response",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,
}
# The function that writes a generation's id as its client knows it (`usage/models/generations.py`).
PUBLIC_ID = "chatapi.identity.public_id"
# Writes the request that the admin's first page shows to copy (`usage/pages/overview.py`).
FIRST_REQUEST = "chatapi.snippets.first_request"
UNFOLD = THEME
LOGIN_URL, LOGIN_REDIRECT_URL = "console:sign_in", "console:home"

# ---- django-allauth: second factors, identity providers and the list of sessions; forms and mail are our own
ACCOUNT_ADAPTER = "accounts.sign_in.adapters.AccountAdapter"
ACCOUNT_EMAIL_VERIFICATION = "none"  # our own links confirm an address before there is an account
ACCOUNT_RATE_LIMITS = {"login": "30/m/ip"}  # passkeys and identity providers; the form counts by itself
ACCOUNT_FORMS = {
    "change_password": "accounts.sign_in.password_forms.ChangeForm",
    "reauthenticate": "accounts.sign_in.password_forms.AgainForm",
    "set_password": "accounts.sign_in.password_forms.SetForm",
}
MFA_FORMS = {"activate_totp": "accounts.sign_in.adapters.ActivateAppForm"}
MFA_ADAPTER = "accounts.sign_in.adapters.MFAAdapter"
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_TOTP_TOLERANCE = 1  # clocks of phones differ by up to 30 s
SOCIALACCOUNT_ADAPTER = "accounts.sign_in.adapters.SocialAccountAdapter"
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "provider_class": "accounts.sign_in.nonces.NonceProvider",
    }
}
SOCIALACCOUNT_LOGIN_ON_GET = True
CACHES = {
    "default": {
        "BACKEND": "accounts.sign_in.cache.AllauthInRedisCache",
        "KEY_PREFIX": f"{REDIS_KEY_PREFIX}cache",
        "OPTIONS": {"socket_timeout": 3, "socket_connect_timeout": 3},
    }
}

LOG_LEVEL = env.choice(
    "CHATAPI_LOG_LEVEL", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
)
LOG_FORMAT = env.choice("CHATAPI_LOG_FORMAT", default="console", choices=("console", "json"))
# Misspelt names of settings, each with the nearest right one; a new setting is read above this line.
UNKNOWN_VARIABLES = env.unknown("CHATAPI_")
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "console": {"()": "chatapi.log_formats.ConsoleFormatter"},
        "json": {"()": "chatapi.log_formats.JSONFormatter"},
    },
    "filters": {
        "by_route": {"()": "chatapi.refusal_log.ByRoute"},
        "one_line": {"()": "chatapi.refusal_log.OneLine"},
        "without_outages": {"()": "chatapi.refusal_log.WithoutOutages"},
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT},
        "refusals": {"class": "logging.StreamHandler", "formatter": LOG_FORMAT, "filters": ["one_line"]},
    },
    "root": {"handlers": ["stderr"], "level": LOG_LEVEL},
    "loggers": {
        "celery": {"level": "WARNING"},
        "kombu": {"level": "WARNING"},
        "stripe": {"level": "WARNING"},
        # DEBUG would log the first line of any client's request.
        "daphne": {"level": "INFO"},
        "django.request": {"level": "ERROR", "filters": ["without_outages", "by_route"]},
        "django.security": {"handlers": ["refusals"], "propagate": False},
        # Any client can send a wrong Host; it gets 400, and the log needs no error.
        "django.security.DisallowedHost": {"level": "CRITICAL"},
    },
}
