"""`manage.py doctor`: what it finds in an installation that is right, and in one that is not."""

import re
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django.fixtures import Settings
from redis import Redis

from accounts import certificates
from accounts.models import Certificate
from chatapi.doctor import client_certificates, configuration, served_models, stores
from chatapi.doctor.finding import Finding, Level
from chatapi.models import Deployment, ServedModel
from chatapi.pages import deployment_pages
from chatapi.worker import deployments
from tests.cast import Person
from tests.chatapi.worker.processes import Valkey
from tests.client_certificates import make
from tests.installation import Installation
from usage.books import prices

pytestmark = [pytest.mark.xdist_group("doctor"), pytest.mark.timeout(180)]


def not_ok(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(each.level.value, each.text) for each in findings if each.level is not Level.OK]


# ---- a whole installation


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with Installation(tmp_path_factory.mktemp("doctor")) as service:
        service.start({"answers": {}, "refuses": {"status": 500}})
        yield service


def test_it_calls_each_upstream_once_for_one_token_and_says_which_fails(service: Installation) -> None:
    calls = {model: len(service.calls(model)) for model in ("answers", "refuses")}
    done = service.manage("doctor")
    assert (done.returncode, done.stderr) == (1, "")
    upstreams = [line for line in done.stdout.splitlines() if " upstreams " in line]
    assert upstreams[0].startswith("ok       upstreams     answers by upstream answered in ")
    assert upstreams[1].startswith("WRONG    upstreams     refuses by upstream: 50")
    assert done.stdout.splitlines()[-1].startswith("1 wrong, ")
    assert [len(service.calls(model)) - before for model, before in calls.items()] == [1, 1]
    assert service.calls("answers")[-1]["body"]["max_tokens"] == 1


def test_an_installation_that_is_right_exits_with_0(service: Installation) -> None:
    done = service.manage("doctor", "--no-upstreams")
    assert (done.returncode, done.stderr) == (0, "")
    assert "WRONG" not in done.stdout
    assert "ok       processes     1 worker connected." in done.stdout
    subjects = {line[9:22].strip() for line in done.stdout.splitlines()[:-1]} - {""}
    known = {"settings", "database", "migrations", "Redis", "Redis policy", "Redis files", "clocks"}
    assert subjects == known | {"processes", "proxies", "mail", "webhooks", "models"}
    assert not any(key in done.stdout for key in service.keys.values())


def test_a_redis_url_that_is_none_is_reported_once_with_what_depends_on_it(service: Installation) -> None:
    usual = service.environment
    others = {
        name: value for name, value in usual.items() if not name.endswith(("BROKER_URL", "STREAMS_URL"))
    }
    service.environment = others | {"REDIS_URL": "localhost:6379"}
    try:
        done = service.manage("doctor", "--no-upstreams")
    finally:
        service.environment = usual
    assert (done.returncode, done.stderr) == (1, "")
    wrong = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    text = "REDIS_URL must be a Redis URL. CHATAPI_BROKER_URL and CHATAPI_STREAMS_URL are the same."
    assert wrong == [f"WRONG    settings      {text}"]


def test_a_redis_that_answers_but_is_not_right_hides_no_other_check(service: Installation) -> None:
    with service.open_valkey() as redis:
        redis.config_set("maxmemory-policy", "allkeys-lru")
        try:
            done = service.manage("doctor", "--no-upstreams")
        finally:
            redis.config_set("maxmemory-policy", "noeviction")
    assert "WRONG    Redis policy" in done.stdout
    assert "clocks        The clocks of Redis and" in done.stdout
    assert "ok       processes     1 worker connected." in done.stdout


def test_a_database_that_is_away_is_named_with_the_reason_and_the_remedy(service: Installation) -> None:
    usual = service.environment
    service.environment = usual | {"DATABASE_URL": "postgres://chatapi@127.0.0.1:1/chatapi"}
    try:
        done = service.manage("doctor", "--no-upstreams")
    finally:
        service.environment = usual
    assert done.returncode == 1
    found = re.search(r"WRONG    database      (.*)\n +-> (.*)\n", done.stdout)
    assert found
    assert re.fullmatch(r"The database can't be reached \(.*port 1 failed: .*refused.*\)\.", found[1])
    assert found[2] == "Check DATABASE_URL."


def test_a_misspelt_setting_is_wrong(service: Installation) -> None:
    usual = service.environment
    service.environment = usual | {"CHATAPI_PNIG_MS": "5"}
    try:
        done = service.manage("doctor", "--no-upstreams")
    finally:
        service.environment = usual
    assert done.returncode == 1
    assert "WRONG    settings      CHATAPI_PNIG_MS is not a setting." in done.stdout
    assert "-> Did you mean CHATAPI_PING_MS?" in done.stdout


# ---- Redis


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with Valkey(tmp_path_factory.mktemp("valkey")) as valkey:
        yield Redis(unix_socket_path=str(valkey.socket))


@pytest.fixture
def redis(valkey: Redis, settings: Settings) -> Redis:
    """A Redis that is set up as it should be, before and after the test."""
    path = valkey.connection_pool.connection_kwargs["path"]
    settings.BROKER_URL = settings.STREAMS_URL = f"unix://{path}"
    right = {
        "maxmemory": "100mb",
        "maxmemory-policy": "noeviction",
        "save": "",
        "appendonly": "no",
        "slowlog-log-slower-than": "-1",
        "commandlog-request-larger-than": "-1",
    }
    for name, value in right.items():
        valkey.config_set(name, value)
    return valkey


def test_a_redis_that_is_right(redis: Redis) -> None:
    assert not_ok(stores.check_redis()) == []
    assert stores.check_redis_clock().level is Level.OK
    assert stores.check_processes().text == "No worker is connected."


def test_each_server_of_streams_is_checked(redis: Redis, settings: Settings, tmp_path: Path) -> None:
    with Valkey(tmp_path) as second:
        settings.STREAMS_URL = f"{settings.BROKER_URL},unix://{second.socket}"
        assert {text.partition(" ")[0] for _, text in not_ok(stores.check_redis())} == {second.socket}
        with redis.pubsub() as channel:  # type: ignore[no-untyped-call]
            channel.subscribe("chatapi:worker:host:1")
            channel.get_message(timeout=1)
            found = stores.check_processes()
    assert found.level is Level.WARNING
    assert found.text == "Not every worker is connected to every server of CHATAPI_STREAMS_URL."


@pytest.mark.parametrize(
    ("name", "value", "level", "text"),
    [
        ("maxmemory-policy", "allkeys-lru", "WRONG", "has maxmemory-policy allkeys-lru"),
        ("maxmemory", "0", "warning", "has no maxmemory"),
        ("maxmemory", "1100kb", "warning", "of its maxmemory"),
        ("save", "60 1", "warning", "writes prompts and answers to its disk"),
        ("appendonly", "yes", "warning", "writes prompts and answers to its disk"),
        ("slowlog-log-slower-than", "10000", "warning", "keeps slow commands"),
        ("commandlog-request-larger-than", "1048576", "warning", "keeps large commands"),
    ],
)
def test_a_redis_that_is_not_right(redis: Redis, name: str, value: str, level: str, text: str) -> None:
    redis.config_set(name, value)
    ((found, sentence),) = not_ok(stores.check_redis())
    assert found == level
    assert text in sentence


def test_a_redis_that_is_away_is_named_without_its_password(settings: Settings) -> None:
    settings.BROKER_URL = "redis://user:hunter2@127.0.0.1:9/0"
    settings.STREAMS_URL = "redis://user:hunter2@127.0.0.1:9/0?ssl=true"
    found = not_ok(stores.check_redis())
    assert [level for level, _ in found] == ["WRONG", "WRONG"]
    assert all(text.startswith("127.0.0.1:9 does not answer: ") for _, text in found)
    assert found[1][1].startswith("127.0.0.1:9 does not answer: its URL can't be read.")
    assert "hunter2" not in str(found)


@pytest.mark.parametrize(
    ("rest", "place"),
    [
        (":hun/ter2@127.0.0.1:9/0", "127.0.0.1:9"),
        (":hun#ter2@127.0.0.1:9/0", "127.0.0.1:9"),
        (":hun[ter2@127.0.0.1:9/0", "127.0.0.1:9"),
        (":hun://ter2@127.0.0.1:9/0", "127.0.0.1:9"),
        (":hun?ter2@127.0.0.1:9/0", "…"),
        ("127.0.0.1:9/0?ssl=true&password=hun@ter2", "…"),
    ],
)
def test_a_password_that_is_not_percent_encoded_is_not_shown(
    settings: Settings, rest: str, place: str
) -> None:
    settings.BROKER_URL = settings.STREAMS_URL = f"redis://{rest}"
    [(level, text)] = not_ok(stores.check_redis())
    assert (level, text) == ("WRONG", f"{place} does not answer: its URL can't be read.")


def test_a_redis_that_is_a_replica(redis: Redis) -> None:
    redis.replicaof("127.0.0.1", "9")
    try:
        ((level, text),) = not_ok(stores.check_redis())
    finally:
        redis.replicaof("NO", "ONE")
    assert level == "WRONG"
    assert text.endswith(" is a replica, which refuses to write.")


class ScriptedRedis(socketserver.StreamRequestHandler):
    """Speaks the protocol of Redis, and answers INFO with the server's `info`."""

    def handle(self) -> None:
        """Answer each command of a connection."""
        info: str = self.server.info  # type: ignore[attr-defined]
        answers = {
            b"HELLO": b"%1\r\n+proto\r\n:3\r\n",
            b"INFO": b"$%d\r\n%s\r\n" % (len(info), info.encode()),
            b"CONFIG": b"%2\r\n+save\r\n+\r\n+slowlog-log-slower-than\r\n+-1\r\n",
        }
        while head := self.rfile.readline():
            words = []
            for _ in range(int(head[1:])):
                size = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(size + 2)[:-2])
            self.wfile.write(answers.get(words[0], b"+OK\r\n"))


@pytest.mark.parametrize(
    ("info", "text"),
    [
        ("redis_version:6.2.14", " is Redis 6.2.14."),
        ("redis_version:7.4.0\r\nvalkey_version:6.9.9", " is Valkey 6.9.9."),
        ("redis_version:7.4.0\r\nredis_mode:cluster", " is a cluster, which is not supported."),
    ],
)
def test_a_redis_that_is_too_old_or_a_cluster(settings: Settings, info: str, text: str) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), ScriptedRedis) as server:
        server.daemon_threads = True
        memory = "maxmemory:1000\r\nused_memory:1\r\nmaxmemory_policy:noeviction"
        server.info = f"{info}\r\n{memory}"  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"127.0.0.1:{server.server_address[1]}"
        settings.BROKER_URL = settings.STREAMS_URL = f"redis://{place}"
        assert not_ok(stores.check_redis()) == [("WRONG", place + text)]
        server.shutdown()


@pytest.mark.django_db
@pytest.mark.parametrize("check", [stores.check_redis_clock, stores.check_database_clock])
def test_a_clock_that_is_wrong(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, check: Callable[[], Finding]
) -> None:
    for offset_s, level in ((30, Level.WARNING), (-3_600, Level.WRONG)):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", _shifted(time.time, offset_s))
            found = check()
        assert found.level is level
        assert abs(float(found.text.split()[-2]) - abs(offset_s)) < 5


def _shifted(clock: Any, offset_s: float) -> Any:
    return lambda: clock() + offset_s


# ---- database and catalog


@pytest.mark.django_db
def test_a_database_and_a_catalog_that_are_right(small: ServedModel) -> None:
    assert not_ok(stores.check_migrations()) == []
    assert not_ok(served_models.check_catalog()) == []
    assert stores.check_database_clock().level is Level.OK


@pytest.mark.django_db
@pytest.mark.parametrize(("room", "level"), [("LITTLE_ROOM_BYTES", "warning"), ("NO_ROOM_BYTES", "WRONG")])
def test_a_disk_of_sqlite_that_is_full(monkeypatch: pytest.MonkeyPatch, room: str, level: str) -> None:
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL's disk is elsewhere")
    monkeypatch.setattr(stores, "LITTLE_ROOM_BYTES", 0)
    assert not_ok(stores.check_disk()) == []
    monkeypatch.setattr(stores, "LITTLE_ROOM_BYTES", 1 << 60)
    monkeypatch.setattr(stores, "NO_ROOM_BYTES", 0)
    monkeypatch.setattr(stores, room, 1 << 60)
    [(found, text)] = not_ok(stores.check_disk())
    assert found == level
    assert " MB left: once full, it refuses all requests." in text


@pytest.mark.django_db
def test_models_that_nobody_can_use(small: ServedModel) -> None:
    unpriced = ServedModel.objects.create(id="unpriced")
    Deployment.objects.create(model=unpriced, name="sandbox", engine="sandbox")
    prices.change(ServedModel.objects.create(id="undeployed").pk, prices.current()["small"])
    assert not_ok(served_models.check_catalog()) == [
        ("WRONG", "The model unpriced has no price, so every request for it is refused."),
        ("warning", "The model undeployed has no active deployment, so clients don't see it."),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "known"),
    [
        ("engine", "openai_compatible, anthropic, sandbox"),
        ("on_disconnect", "cancel, drain, continue"),
        ("streaming", "always, without_logprobs, as_requested, never"),
    ],
)
def test_a_deployment_with_a_value_of_another_release_is_one_line(
    field: str, known: str, small: ServedModel, redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    later = Deployment.objects.create(model=small, name="later", engine="sandbox")
    Deployment.objects.filter(pk=later.pk).update(**{field: "telepathy"})
    assert not_ok(served_models.check_deployments()) == [
        ("WRONG", f"small by later is not asked: this release has no {field} 'telepathy', only {known}.")
    ]
    assert {each.target.name for each in deployments.load()["small"]} == {"sandbox"}
    caplog.clear()
    for check in ("catalog", "places", "keys", "upstreams"):
        assert not_ok(getattr(served_models, f"check_{check}")()) == []
    assert caplog.messages == []


@pytest.mark.django_db
def test_a_deployment_with_fewer_places_than_workers(small: ServedModel, redis: Redis) -> None:
    small.deployments.update(max_concurrent=1)
    with redis.pubsub() as channel:  # type: ignore[no-untyped-call]
        channel.subscribe("chatapi:worker:host:1")
        channel.get_message(timeout=1)
        assert not_ok(served_models.check_places()) == []
        channel.subscribe("chatapi:worker:host:2")
        channel.get_message(timeout=1)
        [found] = served_models.check_places()
    assert found.level is Level.WARNING
    assert "may get 2 requests at once: max_concurrent is 1" in found.text
    assert found.remedy == "Run at most 1 worker, or raise max_concurrent to 2."


@pytest.mark.django_db
def test_the_remedy_for_a_missing_key_names_its_variable(
    small: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SMALL_KEY", raising=False)
    row = Deployment(
        model=small, engine="openai_compatible", base_url="http://127.0.0.1:9/v1", api_key_env="SMALL_KEY"
    )
    answer = deployment_pages.call(row)
    remedy = deployment_pages.hint(row, answer.error)
    assert remedy == "Set SMALL_KEY in the environment of web processes and workers, and restart them."


@pytest.mark.django_db
def test_an_empty_catalog_is_a_warning() -> None:
    assert not_ok(served_models.check_catalog()) == [("warning", "No model is served.")]


@pytest.mark.django_db
def test_a_migration_that_is_missing_and_one_of_a_newer_release() -> None:
    from django.db.migrations.recorder import MigrationRecorder

    MigrationRecorder.Migration.objects.create(app="usage", name="9999_later")
    ((level, text),) = not_ok(stores.check_migrations())
    assert (level, text) == ("warning", "A newer release has run here (usage.9999_later).")
    newest = MigrationRecorder.Migration.objects.filter(app="chatapi").latest("name")
    newest.delete()
    ((level, text),) = not_ok(stores.check_migrations())
    assert (level, text) == ("WRONG", "1 of this release are missing.")


# ---- proxies


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"TRUSTED_PROXIES": ["0.0.0.0/0"]}, "WRONG"),
        ({"SECURE_COOKIES": True}, "warning"),
        ({"ALLOWED_HOSTS": ["chat.example.com"]}, "warning"),
    ],
)
def test_proxies(settings: Settings, change: dict[str, Any], level: str) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    assert not_ok(configuration.check_proxies()) == []
    for name, value in change.items():
        setattr(settings, name, value)
    assert [found for found, _ in not_ok(configuration.check_proxies())] == [level]


def test_a_proxy_for_outgoing_requests_is_not_used(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ALLOWED_HOSTS = ["localhost"]
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    ((level, text),) = not_ok(configuration.check_proxies())
    assert (level, text) == ("warning", "HTTPS_PROXY is set, but upstreams are called directly.")


def test_the_help_says_what_a_tired_operator_asks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("doctor", "--help")
    text = " ".join(capsys.readouterr().out.split())
    for answer in ("It changes nothing", "says what to do", "Exits with 1 if anything is WRONG", "one token"):
        assert answer in text


# ---- client certificates


def test_active_certificates_are_checked(alice: Person, settings: Settings) -> None:
    check = client_certificates.check_client_certificates
    settings.CLIENT_CERTIFICATE_HEADER, settings.TRUSTED_PROXIES = "client-cert", ["10.0.0.1"]
    organization_id = alice.project.organization_id
    soon, later = (
        certificates.create(organization_id, make("authority", days=(-9, days)).pem, str(days))
        for days in (9, 90)
    )
    assert list(check()) == []
    certificates.activate(organization_id, [soon, later], alice.project)
    certificates.activate(organization_id, [soon])
    (found,) = not_ok(check())
    assert found == (
        "warning",
        f"Acme / 9 expires on {soon.expires_at:%Y-%m-%d}; then requests that need it are refused.",
    )
    Certificate.objects.filter(pk=soon.pk).update(expires_at=soon.valid_at)
    assert "Acme / 9 has expired" in not_ok(check())[0][1]
    settings.CLIENT_CERTIFICATE_HEADER = ""
    assert not_ok(check())[0][0] == "WRONG"
