"""Traces, from a client's header to the upstream's, as a real collector receives them."""

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chatapi.http_client import Client
from tests.installation import Installation, free_port, wait_for
from tests.otlp_receiver import ReceivedSpan, Receiver, receiving

pytestmark = [pytest.mark.xdist_group("tracing"), pytest.mark.timeout(180)]
MODELS: dict[str, dict[str, Any]] = {
    "five": {"cached_tokens": 1},
    "fails-once": {"status": 500, "fail_first": 1},
    "closes": {"tokens": 50, "fin_after": 20},
    "steady": {"tokens": 1000, "rate": 40},
    "embed": {},
}
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
CANARY = "canary-of-the-prompt"
SPAN_ID = "00f067aa0ba902b7"
SAMPLED = 1
"""The flag; another one says that the id is random."""


@contextmanager
def installed(folder: Path, **environment: str) -> Iterator[Installation]:
    with Installation(folder, **QUICK, **environment) as installation:
        installation.start(MODELS)
        yield installation
        installation.verify()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Installation]:
    """Web and worker that sample every request but those whose client says no."""
    with installed(tmp_path_factory.mktemp("traced"), OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url) as made:
        yield made


def ask(installation: Installation, model: str, trace: str | None, **parameters: Any) -> int:
    """Ask as a client whose own trace has this header; return the status when the answer has ended."""
    body = {"model": model, "messages": [{"role": "user", "content": CANARY}], **parameters}
    path = "/v1/chat/completions"
    if model == "embed":
        path, body = "/v1/embeddings", {"model": model, "input": CANARY}
    client = Client(installation.url, installation.keys["live"])
    return client.send(
        "POST", path, json.dumps(body).encode(), traceparent=trace, tracestate="vendor=a"
    ).status


def spans_of(receiver: Receiver, trace_id: str, *kinds: str) -> list[ReceivedSpan]:
    """Return the spans of these kinds, once all have come."""
    wait_for(lambda: receiver.of_trace(trace_id).keys() >= set(kinds), f"the spans of {trace_id}", 10)
    found = receiver.of_trace(trace_id)
    return [found[kind] for kind in kinds]


def traced(flags: str = "01") -> tuple[str, str]:
    """Return the id of a new trace, and its header."""
    trace_id = secrets.token_hex(16)
    return trace_id, f"00-{trace_id}-{SPAN_ID}-{flags}"


@pytest.mark.parametrize("is_stream", [True, False])
def test_one_trace_leads_from_the_client_to_the_upstream(
    installation: Installation, receiver: Receiver, is_stream: bool
) -> None:
    trace_id, header = traced()
    assert ask(installation, "five", header, stream=is_stream) == 200
    web, run, attempt = spans_of(receiver, trace_id, "server", "consumer", "client")
    assert [web.parent_id, run.parent_id, attempt.parent_id] == [SPAN_ID, web.span_id, run.span_id]
    assert [web.name, run.name, attempt.name] == [
        "POST /v1/chat/completions",
        "process generations",
        "chat five",
    ]
    assert [web.resource["chatapi.role"], run.resource["chatapi.role"]] == ["web", "worker"]
    assert {span.resource["service.name"] for span in (web, run, attempt)} == {"chatapi"}
    assert [span.is_error for span in (web, run, attempt)] == [False] * 3
    assert web.events == ["enqueued", "response"]
    assert attempt.events == ["first_token"]
    assert 0 < attempt.took_s <= run.took_s
    assert web.attributes["http.response.status_code"] == 200
    assert web.attributes["chatapi.generation.id"] == run.attributes["chatapi.generation.id"]
    assert run.attributes["chatapi.outcome"] == "completed"
    shown = installation.calls("five")[-1]["headers"]
    assert shown["traceparent"] == f"00-{trace_id}-{attempt.span_id}-01"
    assert shown["tracestate"] == attempt.trace_state == "vendor=a"


def test_the_spans_say_what_the_conventions_for_generative_ai_ask_for(
    installation: Installation, receiver: Receiver
) -> None:
    trace_id, header = traced()
    ask(installation, "five", header)
    run, attempt = spans_of(receiver, trace_id, "consumer", "client")
    duration = attempt.attributes.pop("gen_ai.response.time_to_first_chunk")
    assert 0 <= duration <= attempt.took_s + 0.001
    port = int(installation.upstream_url.rpartition(":")[2])
    assert attempt.attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "five",
        "gen_ai.request.stream": True,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": run.attributes["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 1,
        "gen_ai.usage.cache_creation.input_tokens": 0,
        "chatapi.deployment": "upstream",
        "server.address": "127.0.0.1",
        "server.port": port,
    }


def test_embeddings_are_an_operation_of_their_own(installation: Installation, receiver: Receiver) -> None:
    trace_id, header = traced()
    assert ask(installation, "embed", header) == 200
    assert spans_of(receiver, trace_id, "client")[0].name == "embeddings embed"


def test_each_attempt_is_a_span_and_a_failed_one_an_error(
    installation: Installation, receiver: Receiver
) -> None:
    trace_id, header = traced()
    assert ask(installation, "fails-once", header) == 200
    _, run = spans_of(receiver, trace_id, "server", "consumer")

    def attempts() -> list[ReceivedSpan]:
        return [span for span in receiver.spans if span.trace_id == trace_id and span.kind == "client"]

    wait_for(lambda: len(attempts()) == 2, "two attempts")
    assert {attempt.parent_id for attempt in attempts()} == {run.span_id}
    assert sorted((span.is_error, span.attributes.get("error.type", "")) for span in attempts()) == [
        (False, ""),
        (True, "upstream_error"),
    ]
    assert not run.is_error


def test_a_stream_that_breaks_off_is_an_error_in_every_span(
    installation: Installation, receiver: Receiver
) -> None:
    trace_id, header = traced()
    assert ask(installation, "closes", header, stream=True) == 200
    spans = spans_of(receiver, trace_id, "server", "consumer", "client")
    assert [(span.is_error, span.attributes["error.type"]) for span in spans] == [
        (True, "upstream_disconnected")
    ] * 3


def test_a_client_that_leaves_is_no_error(installation: Installation, receiver: Receiver) -> None:
    trace_id, header = traced()
    client = Client(installation.url, installation.keys["live"])
    body = json.dumps({"model": "steady", "messages": [{"role": "user", "content": "x"}], "stream": True})
    with client.exchange("POST", "/v1/chat/completions", body.encode(), {"traceparent": header}) as exchange:
        next(exchange.data())
    web, run = spans_of(receiver, trace_id, "server", "consumer")
    assert web.attributes["chatapi.client_left"]
    assert run.attributes["chatapi.outcome"] == "client_cancelled"
    assert [web.is_error, run.is_error] == [False, False]


def test_a_refused_request_has_its_code_and_is_no_error(
    installation: Installation, receiver: Receiver
) -> None:
    trace_id, header = traced()
    assert ask(installation, "no-such-model", header) == 404
    (web,) = spans_of(receiver, trace_id, "server")
    assert (web.attributes["error.type"], web.is_error) == ("model_not_found", False)
    assert web.attributes["http.response.status_code"] == 404


def test_requests_without_a_valid_key_make_no_spans(installation: Installation, receiver: Receiver) -> None:
    trace_id, header = traced()
    stranger = Client(installation.url, "ck_live_nobody")
    assert stranger.send("POST", "/v1/chat/completions", b"{}", traceparent=header).status == 401
    later, header = traced()
    ask(installation, "five", header)
    spans_of(receiver, later, "server")
    assert receiver.of_trace(trace_id) == {}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" + "x" * 600,
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01, 00-4bf92f3577b34da6a3ce929d0e0e4736-"
        "00f067aa0ba902b7-01",
        "\xff" * 55,
    ],
)
def test_a_header_that_is_not_valid_is_ignored(
    installation: Installation, receiver: Receiver, header: str
) -> None:
    before = len(installation.calls("five"))
    assert ask(installation, "five", header) == 200
    assert len(installation.calls("five")) == before + 1
    shown = installation.calls("five")[-1]["headers"]
    _, trace_id, _, flags = shown["traceparent"].split("-")
    assert (trace_id == "4bf92f3577b34da6a3ce929d0e0e4736", int(flags) & SAMPLED) == (False, SAMPLED)
    assert "tracestate" not in shown
    assert spans_of(receiver, trace_id, "server")[0].parent_id == ""
    assert "traceparent" not in installation.log("web")


def test_a_state_that_is_too_long_is_passed_on_to_nobody(
    installation: Installation, receiver: Receiver
) -> None:
    trace_id, header = traced()
    state = ",".join(f"v{number}={'a' * 250}" for number in range(30))
    client = Client(installation.url, installation.keys["live"])
    body = {"model": "five", "messages": [{"role": "user", "content": CANARY}]}
    answer = client.send(
        "POST", "/v1/chat/completions", json.dumps(body).encode(), traceparent=header, tracestate=state
    )
    assert answer.status == 200
    spans_of(receiver, trace_id, "server", "consumer", "client")
    assert "tracestate" not in installation.calls("five")[-1]["headers"]


def test_no_span_has_content_keys_or_names_of_end_users(
    installation: Installation, receiver: Receiver
) -> None:
    trace_id, header = traced()
    parameters = {"user": "alice-the-end-user", "metadata": {"secret": "of-the-metadata"}}
    ask(installation, "five", header, **parameters)
    ask(installation, CANARY, header)
    spans_of(receiver, trace_id, "server", "consumer", "client")
    answer = installation.calls("five")[-1]["body"]["messages"][0]["content"]
    assert answer == CANARY
    key = installation.keys["live"]
    private = [CANARY, "alice-the-end-user", "of-the-metadata", key, key.split("_")[2]]
    everything = b"".join(receiver.bodies)
    assert [word for word in private if word.encode() in everything] == []


@pytest.mark.parametrize(
    ("sampler", "argument", "flags", "samples"),
    [
        ("traceidratio", "0.000001", "01", False),
        ("always_off", "", "01", False),
        ("parentbased_always_off", "", "01", True),
        ("parentbased_always_on", "", "00", False),
        ("always_on", "", "00", True),
    ],
)
def test_a_client_decides_on_sampling_only_if_the_sampler_asks_its_parent(
    tmp_path: Path, sampler: str, argument: str, flags: str, samples: bool
) -> None:
    with receiving() as receiver:
        environment = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
        with installed(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **environment) as installation:
            header = f"00-{'0' * 31}1-{SPAN_ID}-{flags}"  # the smallest of all ids
            assert ask(installation, "five", header) == 200
            shown = installation.calls("five")[-1]["headers"]["traceparent"]
            assert int(shown.rpartition("-")[2]) & SAMPLED == samples
            installation.end("worker", timeout_s=20)
    kinds = set(receiver.of_trace(f"{'0' * 31}1"))
    assert bool(kinds) == samples, kinds


def test_a_collector_that_is_away_costs_one_line_and_no_request(tmp_path: Path) -> None:
    port = free_port()
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_BSP_MAX_QUEUE_SIZE": "4",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4",
    }
    with installed(tmp_path, **environment) as installation:
        for _ in range(12):
            assert ask(installation, "five", None) == 200
        lost = "traces are lost"
        for name in ("web", "worker"):
            wait_for(lambda name=name: lost in installation.log(name), f"{name}'s line")  # type: ignore[misc]
        with receiving(port) as receiver:
            trace_id, header = traced()
            assert ask(installation, "five", header) == 200
            spans_of(receiver, trace_id, "server", "consumer", "client")
            for name in ("web", "worker"):
                log = installation.log(name)
                assert (log.count(lost), log.count("takes traces again")) == (1, 1), log
                assert "opentelemetry" not in log
        began = time.monotonic()
        assert ask(installation, "five", None) == 200
        installation.end("web", timeout_s=20)
        assert time.monotonic() - began < 10


def test_without_a_collector_nothing_is_imported_and_the_upstream_gets_no_trace(tmp_path: Path) -> None:
    with installed(tmp_path) as installation:
        _, header = traced()
        assert ask(installation, "five", header) == 200
        assert "traceparent" not in installation.calls("five")[-1]["headers"]
    # redis-py imports the SDK if it is installed, for metrics of its own.
    imported = installation.shell(
        "import chatapi.tracing, chatapi.web.kinds, chatapi.worker.worker_process, sys;"
        "print([name for name in sys.modules"
        " if name.startswith(('opentelemetry.exporter', 'chatapi.tracing.'))])"
    )
    assert imported == "[]"


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER='sometimes'"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "half"},
            "OTEL_TRACES_SAMPLER_ARG='half'",
        ),
    ],
)
def test_a_wrong_setting_stops_the_start_with_one_line(
    tmp_path: Path, environment: dict[str, str], named: str
) -> None:
    usual = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    installation = Installation(tmp_path, **(usual | environment))
    done = installation.manage("serve", "--only", "worker")
    (line,) = done.stderr.splitlines()
    assert (done.returncode, named in line, "chatapi.E017" in line) == (1, True, True), line


def test_a_package_that_is_missing_stops_the_start_with_one_line(tmp_path: Path) -> None:
    # A package of this name without content hides the installed one.
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").touch()
    installation = Installation(
        tmp_path / "state",
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318",
        PYTHONPATH=str(tmp_path),
    )
    done = installation.manage("serve", "--only", "worker")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "OpenTelemetry is not installed" in line
