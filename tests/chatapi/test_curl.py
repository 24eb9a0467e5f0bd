"""The same with nothing but curl, as the documentation shows it."""

import json
import signal
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from tests.curl import CURL, needs_curl
from tests.installation import Installation, wait_for

pytestmark = [pytest.mark.xdist_group("installation"), pytest.mark.timeout(120), needs_curl]

Curl = Callable[..., "subprocess.CompletedProcess[str]"]
WORDS = [" the", " of", " and", " to", " in"]


def command(installation: Installation, path: str, *options: str) -> list[str]:
    return [
        CURL,
        "-sS",
        "--max-time",
        "15",
        "-H",
        f"Authorization: Bearer {installation.keys['live']}",
        *options,
        installation.url + path,
    ]


def body(model: str, **more: object) -> tuple[str, ...]:
    """Return curl's options that post a request."""
    document = {"model": model, "messages": [{"role": "user", "content": "hello"}], **more}
    return ("-H", "Content-Type: application/json", "-d", json.dumps(document))


@pytest.fixture
def curl(installation: Installation) -> Curl:
    """Runs curl with a key; the path comes first."""

    def run(path: str, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command(installation, path, *options), capture_output=True, text=True, timeout=30, check=False
        )

    return run


def test_a_completion(curl: Curl) -> None:
    done = curl("/v1/chat/completions", *body("five"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] == "".join(WORDS)


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_a_stream(curl: Curl, version: str) -> None:
    done = curl("/v1/chat/completions", "-N", version, *body("five", stream=True))
    assert done.returncode == 0, done.stderr
    *chunks, end, rest = done.stdout.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    deltas = [
        choice["delta"] for chunk in chunks for choice in json.loads(chunk.removeprefix("data: "))["choices"]
    ]
    assert [delta["content"] for delta in deltas if "content" in delta] == WORDS


def test_headers_and_status_of_an_error(curl: Curl) -> None:
    done = curl("/v1/chat/completions", "-i", *body("gpt-99", stream=True))
    head, _, error = done.stdout.partition("\n\n")
    assert head.startswith("HTTP/1.1 404")
    assert "content-type: application/json" in head.lower()
    assert json.loads(error)["error"]["code"] == "model_not_found"


def test_fail_with_body_fails_with_the_envelope(curl: Curl) -> None:
    done = curl("/v1/chat/completions", "--fail-with-body", *body("five", temperature=5))
    assert done.returncode == 22
    assert json.loads(done.stdout)["error"]["param"] == "temperature"


def test_a_request_without_a_content_type_is_refused(curl: Curl) -> None:
    *_, document = body("five")
    error = json.loads(curl("/v1/chat/completions", "-d", document).stdout)["error"]
    assert error["code"] == "unsupported_media_type"
    assert "application/json" in error["message"]


def test_a_body_sent_only_after_100_continue_is_taken(curl: Curl) -> None:
    done = curl("/v1/chat/completions", "-v", "-H", "Expect: 100-continue", *body("five"))
    assert "100 Continue" in done.stderr
    assert json.loads(done.stdout)["model"] == "five"


def test_the_models(curl: Curl) -> None:
    assert "five" in [model["id"] for model in json.loads(curl("/v1/models").stdout)["data"]]
    assert curl("/v1/models", "-I").stdout.startswith("HTTP/1.1 200")


def test_ctrl_c_cuts_the_upstream(installation: Installation) -> None:
    line = command(installation, "/v1/chat/completions", "-N", *body("steady", stream=True))
    # Tests that a shell runs in the background ignore SIGINT, and so does all that they start.
    heed_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_sigint,  # noqa: PLW1509
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline().removeprefix("data: "))
        wait_for(lambda: bool(installation.calls("steady")[-1]["tokens"] >= 3), "three tokens")
        process.send_signal(signal.SIGINT)
        wait_for(lambda: bool(installation.calls("steady")[-1]["is_peer_gone"]), "the cut")
    assert installation.receipt(first["id"])["outcome"] == "client_cancelled"
