"""What a soak's verdict holds against a run: each test has one thing wrong, and the verdict must say so."""

import random
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from chatapi.models import USUAL_RETRIES
from tests.fake_completion import WORDS
from tests.faults.bookkeeper import Row
from tests.faults.soak_clients import Guest
from tests.faults.soak_connections import Connections, KeepingClient
from tests.faults.soak_verdict import (
    MAX_CALLS,
    MAX_SILENCE_S,
    Loss,
    Outages,
    Verdict,
    Waits,
)
from tests.faults.soak_visits import Heard, Visit
from tests.installation import Installation

REPORT: dict[str, list[str]] = {"differences": [], "over limit": [], "pending": []}
ID = f"{7:032x}"
FIVE = Row(ID, "completed", "upstream", 7, 5, charges=1, overages=0, amount_nanodollars=17_000, seconds=0.1)
NINETY = FIVE._replace(completion_tokens=90, amount_nanodollars=187_000)
NOTHING = FIVE._replace(
    outcome="failed", usage_source="none", prompt_tokens=0, completion_tokens=0, amount_nanodollars=0
)
LOST = NOTHING._replace(outcome="worker_lost")


class Garbled(BaseHTTPRequestHandler):
    """Answers every request with data that is not a chunk."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: {}\n\n")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def words(tokens: int, *, behind: int = 0) -> list[str]:
    return list(islice(cycle(WORDS), behind, behind + tokens))


def heard(tokens: int = 5, **changes: Any) -> Heard:
    """Return a stream with its usage, between seconds 10 and 12."""
    usage = {"prompt_tokens": 7, "completion_tokens": tokens}
    whole = Heard(10.0, 12.0, 200, f"chatcmpl-{ID}", words=words(tokens), ends=1, is_done=True, usage=usage)
    return replace(whole, **changes)


def left(tokens: int, **changes: Any) -> Heard:
    return heard(tokens, **{"is_done": False, "has_left": True, "ends": 0, "usage": None, **changes})


def told_an_error(tokens: int) -> Heard:
    return heard(tokens, usage=None)


def broken(**changes: Any) -> Heard:
    return left(3, **{"has_left": False, **changes})


def violations(
    *connections: Heard,
    rows: tuple[Row, ...] = (FIVE,),
    sent: tuple[int, ...] = (5,),
    act: str = "reads",
    outages: Outages | None = None,
) -> list[str]:
    """Return the violations without the visits that they name."""
    visit = Visit(act, "five", "guest 7", list(connections))
    calls = [{"body": {"messages": [{"content": "guest 7"}]}, "tokens": tokens} for tokens in sent]
    found = Verdict.of([visit], rows, REPORT, calls, outages or Outages()).violations
    return [violation.removeprefix(f"{visit}: ") for violation in found]


# ---- the run


def test_a_run_in_which_nothing_is_wrong_has_no_violation() -> None:
    assert violations(heard()) == []


def test_too_few_generations_are_a_violation() -> None:
    verdict = Verdict.of([], [FIVE], REPORT, [], Outages()).asking_at_least(4)
    assert verdict.violations[-1] == "only 1 generations, at least 4 were asked for"


def test_a_client_that_failed_is_a_violation() -> None:
    visit = Visit("reads", "five", "guest 8", failure="KeyError('choices')")
    (violation,) = Verdict.of([visit], [], REPORT, [], Outages()).violations
    assert "the client failed: KeyError('choices')" in violation


def test_a_guest_that_fails_says_so_and_does_not_end_its_thread(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    installation.keys = {"live": "", "poor": ""}
    with ThreadingHTTPServer(("127.0.0.1", 0), Garbled) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        installation.port = server.server_port
        found = Guest(installation, 1, random.Random(1)).visit()
        server.shutdown()
    assert found.failure == "KeyError('choices')"


# ---- what was seen, charged and sent


def test_a_client_that_leaves_pays_at_least_what_it_saw_and_at_most_what_was_sent() -> None:
    row = FIVE._replace(outcome="client_cancelled", usage_source="counted", completion_tokens=7)
    assert violations(left(5), rows=(row,), sent=(9,)) == []
    assert violations(left(8), rows=(row,), sent=(9,)) == ["saw 8 tokens, charged 7"]
    assert "charged 7 tokens of 6" in violations(left(5), rows=(row,), sent=(6,))


def test_what_was_seen_before_an_error_is_charged() -> None:
    row = NOTHING._replace(outcome="client_cancelled")
    assert violations(left(0), rows=(row,), sent=(90,)) == []
    assert violations(told_an_error(90), rows=(row,), sent=(90,)) == ["saw 90 tokens, charged 0"]


def test_a_whole_answer_is_charged_whole_even_if_its_client_left() -> None:
    assert violations(left(2), rows=(NINETY,), sent=(90,)) == []
    assert violations(left(2), rows=(FIVE,), sent=(90,)) == ["completed, but charged 5 tokens of 90"]


def test_tokens_that_cost_nothing_are_a_violation() -> None:
    assert violations(heard(), rows=(FIVE._replace(amount_nanodollars=0),)) == [
        f"{ID}: 0 nanodollars for 5 tokens"
    ]


def test_what_nobody_has_in_the_books_was_seen_for_nothing() -> None:
    assert "saw 5 tokens of nothing that is in the books" in violations(heard(generation_id=""), rows=())


# ---- the text, and clients that go on behind it


def test_a_text_that_is_resumed_has_no_gap_and_nothing_twice() -> None:
    assert violations(left(2), heard(skipped_tokens=2, words=words(3, behind=2)), act="resumes") == []
    (gap,) = violations(left(2), heard(skipped_tokens=2, words=words(3, behind=3)), act="resumes")
    assert gap.startswith("not the text behind its first 2 tokens")


def test_a_client_that_goes_on_behind_the_end_gets_no_second_one() -> None:
    before, behind = left(5, ends=1, ends_with_id=1), {"skipped_tokens": 5, "words": [], "usage": None}
    again = heard(0, **{**behind, "ends": 0})
    again.go_on_behind(before)
    assert violations(before, again, act="resumes") == []
    assert violations(before, replace(again, ends=1), act="resumes") == ["2 ends"]
    away = replace(again, ends=1, is_document=True, status=503)
    assert violations(before, away, act="resumes") == []
    lost = replace(again, ends=1, error_codes=["stream_unavailable"])
    assert violations(before, lost, act="resumes") == ["2 ends"]
    outages = Outages(valkey_losses=[Loss(11.0, ID[-1])])
    assert violations(before, lost, act="resumes", outages=outages) == []
    later = heard(0, **{**behind, "ends": 0})
    later.go_on_behind(away)
    assert violations(before, away, later, act="resumes") == []


@pytest.mark.parametrize(("event_id", "expected"), [("", []), ("6-1", ["2 ends"])])
def test_an_end_without_a_new_id_is_sent_again(event_id: str, expected: list[str]) -> None:
    before, again = left(5, event_id="5-1"), heard(0, usage=None)
    before.take("id: 5-1")
    before.take('data: {"id": "c", "choices": []}')
    if event_id:
        before.take(f"id: {event_id}")
    before.take('data: {"error": {}}')
    again.go_on_behind(before)
    assert again.event_id == (event_id or "5-1")
    assert violations(before, again, act="resumes") == expected


def test_every_connection_of_a_visit_has_one_end() -> None:
    assert violations(heard(ends=2), heard(), act="attaches") == ["2 ends"]
    assert violations(broken(), heard(), act="attaches") == ["the connection broke, and web lived"]


def test_a_key_is_one_call_and_one_charge() -> None:
    another = FIVE._replace(id=f"{8:032x}")
    second = heard(generation_id=f"chatcmpl-{another.id}")
    assert violations(heard(), heard(), sent=(5, 5), act="attaches") == ["2 calls of the upstream"]
    assert "charged twice" in violations(heard(), second, rows=(FIVE, another), sent=(5, 5), act="attaches")


def test_a_key_whose_request_came_to_nothing_may_be_used_again() -> None:
    second = FIVE._replace(id=f"{8:032x}")
    connections = told_an_error(0), heard(generation_id=f"chatcmpl-{second.id}")
    assert violations(*connections, rows=(LOST, second), sent=(0, 5), act="sends it again") == []
    assert violations(*connections, rows=(LOST, second), sent=(5, 5)) == ["2 calls of the upstream"]


def test_a_call_without_a_token_is_repeated_a_few_times() -> None:
    assert MAX_CALLS == 1 + USUAL_RETRIES
    assert violations(heard(), sent=(0, 0, 0, 5)) == []
    assert violations(heard(), sent=(0, 0, 0, 0, 5)) == ["5 calls of the upstream"]


# ---- protocols


@pytest.mark.parametrize(
    ("protocol", "lines", "usage"),
    [
        (
            "responses",
            [
                '{"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1"}}',
                '{"type": "response.output_text.delta", "sequence_number": 1, "delta": "the of"}',
                '{"type": "response.completed", "sequence_number": 2, "response": {"id": "resp_1",'
                ' "status": "completed", "error": null, "output": [],'
                ' "usage": {"input_tokens": 7, "output_tokens": 2}}}',
            ],
            {"prompt_tokens": 7, "completion_tokens": 2},
        ),
        (
            "messages",
            [
                '{"type": "message_start", "message": {"id": "msg_1"}}',
                '{"type":"ping"}',
                '{"type": "content_block_delta", "delta": {"type": "text_delta", "text": "the of"}}',
                '{"type": "message_delta", "usage": {"input_tokens": 4, "cache_read_input_tokens": 2,'
                ' "cache_creation_input_tokens": 1, "output_tokens": 2}}',
                '{"type": "message_stop"}',
            ],
            {"prompt_tokens": 7, "completion_tokens": 2},
        ),
        ("messages", ['{"type": "error", "error": {"type": "api_error"}}'], None),
    ],
    ids=["a response", "a message", "an error"],
)
def test_the_last_event_of_each_protocol_is_its_one_end(
    protocol: str, lines: list[str], usage: dict[str, int] | None
) -> None:
    reading = Heard(10.0, protocol=protocol)
    for line in lines:
        assert not reading.is_done
        reading.take("event: any")
        reading.take(f"data: {line}")
    assert (reading.ends, reading.is_done, reading.usage) == (1, True, usage)
    assert reading.words == (words(2) if usage else [])


def test_a_client_that_goes_on_from_a_response_has_two_generations() -> None:
    second = FIVE._replace(id=f"{8:032x}")
    both = heard(), heard(generation_id=f"resp_{second.id}")
    assert violations(*both, rows=(FIVE, second), sent=(5, 5), act="continues") == []
    assert "charged twice" in violations(*both, rows=(FIVE, second), sent=(5, 5))


def test_counting_tokens_is_no_generation() -> None:
    assert violations(heard(0, generation_id="", usage=None), rows=(), sent=(), act="counts") == []
    assert violations(heard(0, usage=None), act="counts") == [
        "1 calls of the upstream",
        "charged for nothing",
    ]


def test_vectors_are_charged_without_tokens_if_they_came() -> None:
    row = FIVE._replace(endpoint="embeddings", completion_tokens=0)
    assert violations(heard(0), rows=(row,), sent=(0,)) == []
    lost = row._replace(outcome="worker_lost")
    assert f"{ID}: 17000 nanodollars for 0 tokens" in violations(told_an_error(0), rows=(lost,), sent=(0,))


# ---- what was away


@pytest.mark.parametrize(
    ("connection", "outages", "is_excused"),
    [
        (broken(), Outages(web_kills=[(11.0, 15.0)]), True),
        (broken(), Outages(web_kills=[(13.0, 15.0)]), False),
        (broken(), Outages(web_stops=[(11.0, 15.0)]), False),
        (broken(status=0, words=[], generation_id=""), Outages(web_stops=[(11.0, 15.0)]), True),
        (broken(status=0, words=[], generation_id=""), Outages(), False),
    ],
    ids=[
        "web was killed",
        "web was killed later",
        "web was to stop",
        "web was to stop, no answer",
        "web lived, no answer",
    ],
)
def test_only_a_killed_web_process_may_break_off_an_answer(
    connection: Heard, outages: Outages, is_excused: bool
) -> None:
    row = FIVE._replace(outcome="client_cancelled")
    assert violations(connection, rows=(row,), outages=outages) == (
        [] if is_excused else ["the connection broke, and web lived"]
    )


def test_a_web_process_that_does_not_stop_by_itself_is_a_violation() -> None:
    assert violations(heard(), outages=Outages(bad_exits=["web was to stop, and ended with -9"])) == [
        "web was to stop, and ended with -9"
    ]


# ---- what clients waited for


def test_queue_timeout_is_a_violation_and_other_errors_are_counted() -> None:
    assert violations(told_an_error(5)) == []
    assert violations(replace(told_an_error(5), error_codes=["queue_timeout"])) == ["it got queue_timeout"]
    visit = Visit("reads", "five", "guest 7", [replace(told_an_error(5), error_codes=["worker_lost"])])
    assert Verdict.of([visit], [FIVE], REPORT, [], Outages()).tables["errors"] == {"worker_lost": 1}


@pytest.mark.parametrize(
    ("silences", "is_borne"),
    [([1.0] * 98 + [40.0], False), ([1.0] * 200 + [40.0], True), ([9.9], True), ([], True)],
)
def test_a_p99_of_silence_above_ten_seconds_is_a_violation(silences: list[float], is_borne: bool) -> None:
    connections = [heard(longest_silence_s=silence) for silence in silences]
    verdict = Verdict.of([Visit("reads", "five", "guest 7", connections)], [FIVE], REPORT, [], Outages())
    found = [violation for violation in verdict.bearing_silence().violations if "p99" in violation]
    assert found == ([] if is_borne else ["longest silence within a stream: p99 is 40.0 s, more than 10 s"])
    assert not any("p99" in violation for violation in verdict.bearing_silence(max_silence_s=41).violations)


def test_silence_before_an_error_begins_with_what_came_last() -> None:
    reading = Heard(10.0)
    reading.hear_head(11.0)
    reading.take('data: {"id": "c", "choices": []}')
    reading.hear_event(12.0)
    reading.take('data: {"error": {"code": "worker_lost"}}')
    reading.hear_event(12.0 + MAX_SILENCE_S)
    assert (reading.first_byte_s, reading.error_silence_s, reading.longest_silence_s) == (
        1.0,
        MAX_SILENCE_S,
        MAX_SILENCE_S,
    )
    assert reading.error_codes == ["worker_lost"]


def test_percentiles_are_of_the_waits_that_there_were() -> None:
    assert Waits.of([None, 3.0, 1.0, 2.0]) == Waits(3, 2.0, 3.0, 3.0)
    assert Waits.of([None]) == Waits(0, 0.0, 0.0, 0.0)


class Counting(BaseHTTPRequestHandler):
    """Answers with the client's port, which is the same for two requests on one connection."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(self.client_address[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize(("closes", "ports"), [(False, 1), (True, 3)])
def test_guests_keep_connections_unless_they_close_them(closes: bool, ports: int) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Counting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        connections = Connections()
        client = KeepingClient(f"http://127.0.0.1:{server.server_port}", "", 5, connections, closes=closes)
        seen = [client.send("GET", "/").body for _ in range(3)]
        connections.close()
        server.shutdown()
    assert len(set(seen)) == ports
