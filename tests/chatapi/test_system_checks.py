"""Each wrong setting has a check with an id, and the defaults pass all of them."""

import re
from pathlib import Path

import pytest
from django.conf import settings as django_settings
from django.core.checks import run_checks
from pytest_django.fixtures import Settings

import chatapi.settings
from chatapi.checks import CHECK_TAG
from chatapi.transports import TRANSPORTS


def ids() -> list[str | None]:
    return [message.id for message in run_checks(tags=[CHECK_TAG])]


def test_the_defaults_are_right() -> None:
    assert ids() == []


def test_the_default_dialect_must_exist(settings: Settings) -> None:
    settings.DEFAULT_DIALECT = "klingon"
    assert ids() == ["chatapi.E001"]


@pytest.mark.parametrize("number", [0, -1])
def test_times_and_sizes_must_be_positive(settings: Settings, number: int) -> None:
    settings.DRAIN_MS = number
    assert ids() == ["chatapi.E002"]


def test_a_process_is_not_hung_at_once(settings: Settings) -> None:
    settings.HUNG_MS = 999
    (message,) = run_checks(tags=[CHECK_TAG])
    assert (message.id, message.msg, message.hint) == (
        "chatapi.E002",
        "CHATAPI_HUNG_MS=999 is too small.",
        "Use 1000 or more.",
    )


@pytest.mark.parametrize(
    "name", re.findall(r"^(\w+) = env\.int\(", Path(chatapi.settings.__file__).read_text(), re.MULTILINE)
)
def test_every_number_has_a_largest_value(settings: Settings, name: str) -> None:
    setattr(settings, name, 10**23)
    assert "chatapi.E002" in ids()


@pytest.mark.parametrize("name", ["SECRET_KEY", "KEY_PEPPER"])
def test_secrets_must_be_long(settings: Settings, name: str) -> None:
    setattr(settings, name, "x" * 31)
    (message,) = run_checks(tags=[CHECK_TAG])
    assert (message.id, message.msg) == ("chatapi.E009", f"CHATAPI_{name} has fewer than 32 characters.")
    setattr(settings, name, "x" * 32)
    assert ids() == []


ORIGINS = ["https://chat.example.com", "http://localhost:8000", "https://*.example.com", "http://[::1]:8000"]


@pytest.mark.parametrize(
    "origin",
    ["example.com", "*", "https://", "https://chat.example.com/", "ftp://chat.example.com", "https://*"],
)
def test_trusted_origins_must_be_such(settings: Settings, origin: str) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ORIGINS
    assert ids() == []
    settings.CSRF_TRUSTED_ORIGINS = [*ORIGINS, origin]
    assert ids() == ["chatapi.E010"]


@pytest.mark.parametrize("model", ["", " "])
def test_the_default_model_must_have_a_name(settings: Settings, model: str) -> None:
    settings.DEFAULT_MODEL = model
    assert ids() == ["chatapi.E011"]


def test_a_lease_must_outlive_a_lost_heartbeat(settings: Settings) -> None:
    settings.LEASE_MS, settings.HEARTBEAT_MS = 1_999, 1_000
    assert ids() == ["chatapi.E003"]
    settings.LEASE_MS = 2_000
    assert ids() == []


@pytest.mark.parametrize("name", ["REDIS_URL", "BROKER_URL", "STREAMS_URL"])
def test_redis_urls_must_be_such(settings: Settings, name: str) -> None:
    for url in ("localhost:6379", "sentinel://localhost:26379", "redis+cluster://localhost:6379"):
        setattr(settings, name, url)
        assert ids() == ["chatapi.E004"]


@pytest.mark.parametrize(
    ("url", "mistake"),
    [
        ("redis+sentinel://a:26379", "names no primary behind its sentinels"),
        ("redis+sentinel://a,b/ma in", "names no primary behind its sentinels"),
        ("redis+sentinel://a/main/hunter2", "has no number of a database behind its primary"),
        ("redis+sentinel:///main", "has no list of sentinels such as a:26379,b:26379"),
        ("redis+sentinel://a;b/main", "has no list of sentinels such as a:26379,b:26379"),
        ("redis+sentinel://:hunter2/@a/main", "has no list of sentinels such as a:26379,b:26379"),
    ],
)
def test_each_mistake_of_a_url_with_sentinels_is_named(settings: Settings, url: str, mistake: str) -> None:
    settings.REDIS_URL = settings.STREAMS_URL = "rediss+sentinel://user:hunter2@a,b:26379/main/1"
    settings.BROKER_URL = f"{settings.REDIS_URL}?ssl_cert_reqs=required"
    assert ids() == []
    settings.BROKER_URL = url
    [message] = run_checks(tags=[CHECK_TAG])
    assert (message.id, message.msg) == ("chatapi.E004", f"CHATAPI_BROKER_URL {mistake}.")


def test_each_server_of_streams_must_be_such(settings: Settings) -> None:
    first = "redis://user:hunter2@a:6379/0"
    settings.STREAMS_URL = f"{first}, rediss://b:6379,unix:///run/valkey.sock"
    assert ids() == []
    for url, place in (
        ("sentinel://user:hunter2@b:26379?password=hunter2", "sentinel://b:26379"),
        ("sentinel://user:hun?ter2@b:26379", "sentinel://…"),
        ("redis+cluster://b:6379", "redis+cluster://b:6379"),
        ("b:6379", "b:6379"),
        ("", "empty"),
    ):
        settings.STREAMS_URL = f"{first},{url}"
        [message] = run_checks(tags=[CHECK_TAG])
        assert (message.id, message.msg) == (
            "chatapi.E004",
            f"CHATAPI_STREAMS_URL: server 1 ({place}) must be a Redis URL.",
        )
    settings.STREAMS_URL = f"{first},rediss://b:6379?ssl_cert_reqs=none"
    [message] = run_checks(tags=[CHECK_TAG])
    assert message.msg == "CHATAPI_STREAMS_URL: server 1 (rediss://b:6379): ssl_cert_reqs must be required."


def test_only_the_streams_may_have_another_transport(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRANSPORTS, "other", TRANSPORTS["redis"])
    settings.REDIS_URL = settings.BROKER_URL = "redis://a:6379"
    settings.STREAMS_URL = "other://b,redis://c:6379"
    assert ids() == []
    # The queue would have no server.
    settings.REDIS_URL = settings.BROKER_URL = settings.STREAMS_URL = "other://b"
    assert ids() == ["chatapi.E004"]
    settings.BROKER_URL = "redis://a:6379"
    assert ids() == []
    settings.BROKER_URL, settings.REDIS_URL = "other://b", "redis://a:6379"
    assert ids() == ["chatapi.E004"]


def test_a_server_of_streams_is_listed_once_and_has_room_in_an_id(settings: Settings) -> None:
    urls = [f"redis://user:hunter2@host-{number}:6379" for number in range(17)]
    settings.STREAMS_URL = ",".join(urls[:16])
    assert ids() == []
    settings.STREAMS_URL = ",".join(urls)
    [message] = run_checks(tags=[CHECK_TAG])
    assert message.msg == "CHATAPI_STREAMS_URL has 17 servers."
    settings.STREAMS_URL = f"{urls[0]},{urls[1]},{urls[0]}"
    [message] = run_checks(tags=[CHECK_TAG])
    assert message.msg == "CHATAPI_STREAMS_URL: 'redis://host-0:6379' is listed twice."


def test_only_the_streams_may_have_several_servers(settings: Settings) -> None:
    settings.BROKER_URL = "redis://a:6379,redis://b:6379"
    assert ids() == ["chatapi.E004"]


@pytest.mark.parametrize("parameter", ["ssl_cert_reqs=none", "ssl_cert_reqs=", "ssl_check_hostname=False"])
def test_redis_certificates_are_always_verified(settings: Settings, parameter: str) -> None:
    settings.BROKER_URL = "rediss://redis:6380/0?ssl_ca_certs=/etc/ca.pem&ssl_cert_reqs=required"
    assert ids() == []
    settings.BROKER_URL = f"rediss://redis:6380/0?ssl_ca_certs=/etc/ca.pem&{parameter}"
    assert ids() == ["chatapi.E014"]


def test_a_replica_is_one_of_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(django_settings, "REPLICA_DATABASE_URL", "postgres://replica/chatapi")
    databases = {engine: {"ENGINE": f"django.db.backends.{engine}"} for engine in ("postgresql", "sqlite3")}
    monkeypatch.setattr(django_settings, "DATABASES", databases)
    assert ids() == ["chatapi.E018"]


def test_a_redis_url_that_can_t_be_read_is_left_to_the_start(settings: Settings) -> None:
    settings.BROKER_URL = "rediss://[redis"
    assert ids() == []


@pytest.mark.parametrize(
    "text", ["settle.in_tx", "nowhere=kill9", "settle.in_tx=kill9@0", "settle.in_tx=sleep:-1"]
)
def test_failpoints_must_exist(settings: Settings, text: str) -> None:
    settings.FAILPOINTS = text
    assert ids() == ["chatapi.E005"]


@pytest.mark.parametrize("proxy", ["localhost", "10.0.0.0/33", "10.0.0.1/8", ""])
def test_trusted_proxies_must_be_addresses(settings: Settings, proxy: str) -> None:
    settings.TRUSTED_PROXIES = ["192.0.2.1", "2001:db8::/32", proxy]
    assert ids() == ["chatapi.E006"]


@pytest.mark.parametrize("name", ["x end user", "x-user:", "authorization", "x" * 65])
def test_the_header_of_end_users_must_be_one_without_a_secret(settings: Settings, name: str) -> None:
    settings.END_USER_HEADER = name
    assert ids() == ["chatapi.E012"]


@pytest.mark.parametrize("name", ["client cert", "cookie", "x-api-key", "cert:"])
def test_the_header_of_certificates_must_be_one_without_a_secret(settings: Settings, name: str) -> None:
    settings.CLIENT_CERTIFICATE_HEADER = name
    assert ids() == ["chatapi.E023"]


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://App.example", "https://*.example", "null"]
)
def test_origins_must_be_as_browsers_send_them(settings: Settings, origin: str) -> None:
    settings.CORS_ORIGINS = [
        "https://app.example.com",
        "http://localhost:3000",
        "http://[::1]:3000",
        "*",
        origin,
    ]
    assert ids() == ["chatapi.E007"]


@pytest.mark.parametrize(
    "token",
    ["short", "fifteen-letters", "with a space in it", "línea-de-16-letras", "line\nand-another-line"],
)
def test_a_metrics_token_is_long_and_fits_into_a_header(settings: Settings, token: str) -> None:
    settings.METRICS_TOKEN = token
    assert ids() == ["chatapi.E008"]
    settings.METRICS_TOKEN = "0123456789abcdef"
    assert ids() == []


def test_failpoints_may_be_several(settings: Settings) -> None:
    settings.FAILPOINTS = "settle.in_tx=kill9@3; enqueue.after=sleep:0.5;claim.after=raise"
    assert ids() == []


HOSTS = ["chat.example.com", ".example.com", "*", "localhost", "10.0.0.5", "[::1]"]


@pytest.mark.parametrize(
    "host", ["https://chat.example.com", "chat.example.com:8000", "a.example/v1", " a.example", "a_b", "::1"]
)
def test_allowed_hosts_must_be_names(settings: Settings, host: str) -> None:
    settings.ALLOWED_HOSTS = HOSTS
    assert ids() == []
    settings.ALLOWED_HOSTS = [*HOSTS, host]
    assert ids() == ["chatapi.E013"]


@pytest.mark.parametrize(
    "prefix", ["/", "llm", "/llm/", "//llm", "/a/../b", "/a b", "/llm?", "/admin", "/x" * 65]
)
def test_a_path_prefix_must_be_a_path_of_its_own(settings: Settings, prefix: str) -> None:
    settings.PATH_PREFIX = "/team-a/llm.v2"
    assert ids() == []
    settings.PATH_PREFIX = prefix
    assert ids() == ["chatapi.E015"]


def test_a_misspelt_name_is_a_warning(settings: Settings) -> None:
    settings.UNKNOWN_VARIABLES = {"CHATAPI_PNIG_MS": "CHATAPI_PING_MS", "CHATAPI_ZZZ": ""}
    found = run_checks(tags=[CHECK_TAG])
    assert [(each.id, each.is_serious()) for each in found] == [("chatapi.W001", False)] * 2
    assert [each.hint for each in found] == ["Did you mean CHATAPI_PING_MS?", "README lists the settings."]


@pytest.mark.parametrize("sender", ["", "bob", "Chat API <bob>", "bob@example.com\r\nBcc: eve@example.com"])
def test_mail_must_have_a_sender(settings: Settings, sender: str) -> None:
    settings.DEFAULT_FROM_EMAIL = sender
    settings.SENDS_EMAIL = False
    assert ids() == []
    settings.SENDS_EMAIL = True
    assert ids() == ["chatapi.E020"]
    settings.DEFAULT_FROM_EMAIL = "Chat API <chatapi@example.com>"
    assert ids() == []


@pytest.mark.parametrize("url", ["chat.example.com", "https://chat.example.com/", "https://*.example.com"])
def test_links_in_mail_begin_with_an_origin(settings: Settings, url: str) -> None:
    settings.PUBLIC_URL = "https://chat.example.com:8443"
    assert ids() == []
    settings.PUBLIC_URL = url
    assert ids() == ["chatapi.E021"]


def test_visitors_do_not_choose_the_host_of_links_in_mail(settings: Settings) -> None:
    settings.ALLOWED_HOSTS, settings.DEFAULT_FROM_EMAIL = ["*"], "chatapi@example.com"
    assert ids() == []
    settings.SENDS_EMAIL = True
    assert ids() == ["chatapi.E021"]
    settings.PUBLIC_URL = "https://chat.example.com"
    assert ids() == []


@pytest.mark.parametrize("mode", ["open", "domain"])
def test_nobody_signs_up_without_mail(settings: Settings, mode: str) -> None:
    settings.SIGN_UP, settings.SIGN_UP_DOMAINS = mode, ["example.com"]
    settings.SENDS_EMAIL, settings.DEFAULT_FROM_EMAIL = False, "chatapi@example.com"
    assert ids() == ["chatapi.E022"]
    settings.SENDS_EMAIL = True
    assert ids() == []


@pytest.mark.parametrize("domains", [[], ["@example.com"], ["example.com", "localhost"], ["*.example.com"]])
def test_domains_of_addresses_are_domains(settings: Settings, domains: list[str]) -> None:
    settings.SENDS_EMAIL, settings.DEFAULT_FROM_EMAIL = True, "chatapi@example.com"
    settings.SIGN_UP, settings.SIGN_UP_DOMAINS = "domain", domains
    assert ids() == ["chatapi.E022"]
