"""From a run's deltas to what it is charged for and what its client gets."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from chatapi import identity
from chatapi.wire.deltas import AnyDelta, Failed, Finished, Reasoning, Refusal, Started, Text, ToolCall, Usage
from chatapi.wire.protocols.chat.request import parse as parse_chat
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.worker.runs import run_usage
from chatapi.worker.runs.run_usage import End, Ending, RunUsage
from usage.books.ledger import Claimed, Settlement
from usage.books.settlement import Attempt
from usage.models import Generation, Outcome, UsageNote, UsageSource
from usage.pricing import FREE, MAX_TOKENS, Price, Tokens

ID = identity.new_id()
SETTLED_AT = datetime.fromtimestamp(1_700_000_002.9, UTC)
REQUEST = parse_chat(b'{"model": "m", "messages": [{"role": "user", "content": "hello there"}]}')
THERE = Attempt("deployment", "", 1)
FAILED = End(Ending.FAILED, Failed("It broke.", code="upstream_error", status=502), (THERE, THERE))
DONE = End(Ending.COMPLETED, None, (THERE,))


def heard(*batch: AnyDelta) -> RunUsage:
    counted = RunUsage()
    counted.add(batch)
    return counted


def settle(counted: RunUsage, end: End, cap: int = 100, choices: int = 1) -> Settlement:
    claimed = Claimed(ID, 1, "m", cap, choices, is_test=False, organization_id=1)
    return run_usage.settlement(claimed, counted, end, run_usage.prompt_tokens(REQUEST))


def test_content_passes_and_the_end_waits_for_the_commit() -> None:
    content: list[AnyDelta] = [
        Started(),
        Reasoning(" the"),
        Text(" of"),
        Refusal(" and"),
        ToolCall(0, "{}", "id", "name"),
    ]
    counted = RunUsage()
    assert counted.add([*content, Finished("stop"), Usage(1, 2)]) == content
    assert (counted.finished, counted.reported) == ({0: Finished("stop")}, Usage(1, 2))


SIGNATURE = Reasoning("", signature="of hidden thinking")
ARGUMENTS = ToolCall(0, '{"long": "argument"}')


@pytest.mark.parametrize(
    ("batches", "gap_s"),
    [
        ([[Text("a")], [Text("b")]], 10),
        ([[Reasoning("a")], [Refusal("b")]], 10),
        ([[ToolCall(0, "{}", "id", "name")], [Text("b")]], 10),
        ([[Text("a")], [Finished("stop", 1), Text("b")]], 10),
        ([[Text("a")], [ToolCall(0, "", "id", "name")], [ARGUMENTS], [Finished("tool_calls")]], 0),
        ([[Text("a")], [ARGUMENTS, Text("b")]], 0),
        ([[Text("a")], [SIGNATURE], [Text("b")]], 10),
        ([[Text("a")], [SIGNATURE, Text("b")]], 0),
        ([[Started()], [Text("a")], [Usage(1, 2)]], 0),
    ],
)
def test_a_stall_is_a_silence_in_what_clients_see(
    monkeypatch: pytest.MonkeyPatch, batches: list[list[AnyDelta]], gap_s: int
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    counted = RunUsage()
    for batch in batches:
        now += 10
        counted.add(batch)
    assert counted.longest_gap_ms == gap_s * 1_000


def test_choices_that_end_before_they_began_are_announced_first() -> None:
    cancelled = End(Ending.CANCELLED, None, (THERE,))
    ends = [Finished("stop", 0, True), Finished("stop", 1, True), Usage(7, 0, completed_at=1_700_000_002)]
    assert run_usage.terminal(cancelled, RunUsage(), Tokens(7, 0), 2, SETTLED_AT) == [Started(), *ends]
    assert run_usage.terminal(cancelled, heard(Started()), Tokens(7, 0), 2, SETTLED_AT) == ends
    assert run_usage.terminal(FAILED, RunUsage(), Tokens(), 2, SETTLED_AT) == [FAILED.failure]


def test_every_kind_of_content_is_counted() -> None:
    assert heard(Started(), Text(" the of"), Text(" and")).completion_tokens == 3
    assert heard(Refusal(" the of")).completion_tokens == 2
    assert heard(Reasoning(" the of"), Text(" and")).completion_tokens == 3
    assert heard(Reasoning(" the of"), Text(" and")).reasoning_tokens == 2
    assert heard(ToolCall(0, " the", "id", "of")).completion_tokens == 2
    assert heard(Text(" the")).reasoning_tokens is None


def test_choices_are_counted_each_by_itself() -> None:
    """Interleaved choices, token by token, have the counts of separate ones."""
    pieces = ["un", "believ", "able", " the", "12", "34", "56"] * 20
    alone = heard(*map(Text, pieces), *map(Reasoning, pieces))
    apart = heard(
        *(kind(piece, index) for piece in pieces for index in range(3) for kind in (Text, Reasoning))
    )
    assert apart.completion_tokens == 3 * alone.completion_tokens
    assert apart.reasoning_tokens == 3 * (alone.reasoning_tokens or 0)


def test_what_one_choice_has_lost_is_not_taken_from_another() -> None:
    counted = heard(Text(" the"), Text(" of and", 1))
    counted.take_back([Text(" the"), Text(" of", 1)])
    assert counted.completion_tokens == 1


def test_the_time_of_the_first_token_is_that_of_the_first_content() -> None:
    assert heard(Started()).first_token_ms is None
    counted = heard(Started(), Text(" the"))
    first = counted.first_token_ms
    counted.add([Text(" of")])
    assert first is not None
    assert counted.first_token_ms == first
    assert counted.last_token_ms is not None
    assert counted.last_token_ms >= first


def test_the_upstreams_usage_counts() -> None:
    settled = settle(heard(Text(" the of"), Finished("stop"), Usage(7, 40, 3, 1)), DONE)
    assert (settled.outcome, settled.usage_source, settled.tokens) == (
        Outcome.COMPLETED,
        UsageSource.UPSTREAM,
        Tokens(7, 40, 3, 1),
    )
    assert (settled.finish_reason, settled.deployment, settled.attempts, settled.error_code) == (
        "stop",
        "deployment",
        1,
        "",
    )


def test_an_upstreams_zero_stays_zero() -> None:
    settled = settle(heard(Text(" the of"), Finished("stop"), Usage(0, 0)), DONE)
    assert (settled.usage_source, settled.tokens) == (UsageSource.UPSTREAM, Tokens(0, 0))


def test_without_the_upstreams_word_we_count() -> None:
    settled = settle(heard(Text(" the of"), Finished("stop")), DONE)
    prompt_tokens = run_usage.prompt_tokens(REQUEST)
    assert prompt_tokens > 2
    assert (settled.usage_source, settled.tokens) == (UsageSource.COUNTED, Tokens(prompt_tokens, 2))


def test_our_own_count_never_goes_beyond_the_cap() -> None:
    settled = settle(heard(Reasoning(" the of and to"), Text(" in")), FAILED, cap=3)
    assert (settled.tokens.completion_tokens, settled.tokens.reasoning_tokens) == (3, 3)


@pytest.mark.parametrize("end", [FAILED, End(Ending.CLIENT_LEFT)])
def test_nothing_generated_and_no_good_end_is_nothing_used(end: End) -> None:
    settled = settle(heard(Started()), end)
    assert (settled.usage_source, settled.tokens) == (UsageSource.NONE, Tokens())


def test_a_failure_is_recorded_and_published() -> None:
    counted = heard(Text(" the of"))
    settled = settle(counted, FAILED)
    assert (settled.outcome, settled.error_code, settled.error_message) == (
        Outcome.FAILED,
        "upstream_error",
        "It broke.",
    )
    assert run_usage.terminal(FAILED, counted, settled.tokens, 1, SETTLED_AT) == [FAILED.failure]


def test_words_about_a_wrong_request_are_passed_on_and_not_kept() -> None:
    refused = End(
        Ending.FAILED, Failed("I don't like 'my secret'.", "invalid_request_error", "bad_prompt", status=400)
    )
    settled = settle(heard(), refused)
    assert (settled.error_code, settled.error_message) == ("bad_prompt", "The request was refused.")
    assert run_usage.terminal(refused, heard(), settled.tokens, 1, SETTLED_AT) == [refused.failure]


@pytest.mark.parametrize("status", [400, 403, 413])
def test_a_wrong_or_unwanted_request_is_not_worth_another_try(status: int) -> None:
    assert settle(heard(), End(Ending.FAILED, Failed("no", status=status))).is_final


@pytest.mark.parametrize("status", [401, 429, 502, 503])
def test_any_other_may_fare_better(status: int) -> None:
    assert not settle(heard(), End(Ending.FAILED, Failed("no", status=status))).is_final
    assert not settle(heard(), DONE).is_final


def test_what_was_asked_to_stop_has_a_normal_end() -> None:
    end = End(Ending.CANCELLED)
    settled = settle(heard(Text(" the of")), end)
    assert (settled.outcome, settled.finish_reason, settled.tokens.completion_tokens) == (
        Outcome.CLIENT_CANCELLED,
        "stop",
        2,
    )
    assert run_usage.terminal(end, heard(Started()), settled.tokens, 1, SETTLED_AT) == [
        Finished("stop", is_cancelled=True),
        Usage(settled.tokens.prompt_tokens, 2, completed_at=1_700_000_002),
    ]


def test_a_client_that_left_is_no_error_and_no_good_end() -> None:
    cancelled = Failed("cancelled", code="cancelled")
    end = End(Ending.CLIENT_LEFT, cancelled)
    settled = settle(heard(Text(" the of")), end)
    assert (settled.outcome, settled.error_code, settled.tokens.completion_tokens) == (
        Outcome.CLIENT_CANCELLED,
        "",
        2,
    )
    assert run_usage.terminal(end, heard(), settled.tokens, 1, SETTLED_AT) == [cancelled]


def test_a_good_end_finishes_every_choice_and_tells_what_was_charged() -> None:
    counted = heard(Started(), Text(" the"), Finished("length", 1), Finished("stop", 0))
    assert settle(counted, DONE, choices=2).finish_reason == "stop,length"
    assert run_usage.terminal(DONE, counted, Tokens(5, 6, 4, None), 2, SETTLED_AT) == [
        Finished("stop", 0),
        Finished("length", 1),
        Usage(5, 6, 4, None, completed_at=1_700_000_002),
    ]


@pytest.mark.parametrize(
    ("finished", "choices", "kept"),
    [
        ({}, 1, "stop"),
        ({}, 2, "stop"),
        ({1: "length"}, 2, "stop,length"),
        ({0: "length", 2: "stop"}, 3, "length,stop,stop"),
    ],
)
def test_the_books_keep_the_finish_reasons_that_a_cancelling_client_got(
    finished: dict[int, Any], choices: int, kept: str
) -> None:
    counted, cancelled = (
        heard(*(Finished(reason, index) for index, reason in finished.items())),
        End(Ending.CANCELLED, None, (THERE,)),
    )
    judged = [
        delta.finish_reason
        for delta in run_usage.terminal(cancelled, counted, Tokens(), choices, SETTLED_AT)
        if isinstance(delta, Finished)
    ]
    settled = settle(counted, cancelled, choices=choices)
    assert settled.finish_reason == kept
    assert Generation(finish_reason=kept, choices_count=choices).finish_reasons == judged


def test_lost_deltas_are_not_counted_and_clear_the_upstreams_usage() -> None:
    counted = heard(Reasoning(" the of"), Text(" and to in"), Finished("stop"), Usage(7, 5))
    counted.take_back([Reasoning(" of"), Text(" to"), ToolCall(0, " in")])
    assert (counted.completion_tokens, counted.reasoning_tokens, counted.pieces, counted.reported) == (
        2,
        1,
        0,
        None,
    )
    counted.take_back([Text(" and"), Reasoning(" the")])
    assert (counted.completion_tokens, counted.reasoning_tokens) == (0, None)


ECHO = " the of and to\n"


def echoing(*batch: AnyDelta, **members: object) -> RunUsage:
    counted = RunUsage()
    counted.expect_echo(
        parse_text(json.dumps({"model": "m", "prompt": ECHO, "echo": True, "n": 4, **members}).encode())
    )
    counted.add(batch)
    return counted


@pytest.mark.parametrize(
    ("pieces", "completion_tokens", "counted_pieces"),
    [
        ([" the", " of"], 0, 0),
        ([" the of and to\n"], 0, 0),
        ([" the", " of", " and", " to", "\n"], 0, 0),
        ([" the of and", " to\n in", " is"], 2, 2),
        (["the of  and", " to", " in"], 1, 1),
        (["the", "of", "and", "to", " in"], 1, 1),
        (["\n", " the of and to\n", " in"], 1, 1),
        ([" in is that"], 3, 1),
        ([" the", " of", " is", " and", " to"], 3, 3),
        ([" the of and to\n"] * 2, 5, 1),
        (["", " the"], 0, 0),
        ([ECHO, ""], 0, 1),
    ],
)
def test_of_an_echo_only_what_is_not_the_prompt_counts(
    pieces: list[str], completion_tokens: int, counted_pieces: int
) -> None:
    counted = echoing(*map(Text, pieces))
    assert (counted.completion_tokens, counted.pieces) == (completion_tokens, counted_pieces)
    assert counted.first_token_ms is not None


def test_an_upstream_that_ignores_echo_is_paid_for_all_that_it_says() -> None:
    for said in (" is that for it as", "\n \n \n \n " * 10):
        assert echoing(*map(Text, said)).completion_tokens >= 5
    settled = settle(echoing(Text(" is that for it as")), End(Ending.CLIENT_LEFT), choices=4)
    assert (settled.usage_source, settled.tokens.completion_tokens) == (UsageSource.COUNTED, 5)


def test_a_choice_that_has_not_spoken_makes_no_other_free() -> None:
    assert echoing(Text(ECHO, 2), Text(" is that", 2), Text(" the", 3)).completion_tokens == 2
    assert echoing(Text(" and to of", 2), Text(" is", 3), Text(ECHO, 0)).completion_tokens == 4


def test_each_choice_echoes_the_prompt_that_it_is_of() -> None:
    prompts = {"prompt": [" the of", " and to"], "n": 2}
    assert (
        echoing(
            *(Text(said, index) for index, said in enumerate([" the of", " the of", " and to", " and to"])),
            **prompts,
        ).pieces
        == 0
    )
    assert echoing(Text(" and to", 1), Text(" the of", 2), **prompts).completion_tokens == 4


def test_a_suffix_is_no_echo() -> None:
    assert echoing(Text(ECHO + " is that"), suffix=" is that for").completion_tokens == 2


def test_of_an_echo_in_token_ids_as_many_tokens_are_left_out_but_none_is_free() -> None:
    ids = {"prompt": [7, 8, 9], "n": 2}
    said = [Text(" the of and to in"), Text(" is"), Text(" that", 1), Text(" for", 1)]
    assert (echoing(*said, **ids).completion_tokens, echoing(*said, **ids).pieces) == (3 + 1, 0)
    assert echoing(**ids).completion_tokens == 0


def test_an_echo_that_is_lost_is_taken_from_nothing_that_was_generated() -> None:
    counted = echoing(Text(ECHO, 0), Text(" is that", 0), Text(ECHO, 1), Text(" for", 1))
    counted.take_back([Text(" that", 0), Text(ECHO, 1), Text(" for", 1)])
    assert counted.completion_tokens == 1


def test_without_an_echo_every_piece_counts() -> None:
    counted = RunUsage()
    counted.expect_echo(REQUEST)
    counted.add([Text(" the"), Text(" of")])
    assert counted.pieces == 2


def test_a_lost_request_has_no_prompt_to_count() -> None:
    assert run_usage.prompt_tokens(None) == 0


# ---- what an upstream tells of itself

DOLLAR = 1_000_000_000
PAID = Claimed(
    ID,
    1,
    "m",
    10,
    1,
    False,
    1,
    max_prompt_tokens=100,
    reserved_nanodollars=50_000,
    price=Price(DOLLAR, 0, DOLLAR),
)


def judged(usage: Usage, run: Claimed = PAID) -> tuple[UsageSource, UsageNote | None, int, int]:
    counted = heard(Started(), Text(" the of"), Finished("stop"), usage)
    settled = run_usage.settlement(run, counted, DONE, run_usage.prompt_tokens(REQUEST))
    return (
        settled.usage_source,
        settled.usage_note,
        settled.tokens.prompt_tokens,
        settled.tokens.completion_tokens,
    )


OURS = (UsageSource.COUNTED, UsageNote.IMPLAUSIBLE, run_usage.prompt_tokens(REQUEST), 2)


@pytest.mark.parametrize("usage", [Usage(7, 2), Usage(0, 0), Usage(40, 10), Usage(7, 10)])
def test_an_upstream_is_believed_what_the_request_can_have_used(usage: Usage) -> None:
    assert judged(usage) == (UsageSource.UPSTREAM, None, usage.prompt_tokens, usage.completion_tokens)


@pytest.mark.parametrize(
    "usage",
    [
        pytest.param(Usage(7, 11), id="more than the cap"),
        pytest.param(Usage(7, 1 << 40), id="more than a column holds"),
        pytest.param(Usage(101, 2), id="more than fits the context"),
        pytest.param(Usage(45, 6), id="more than was held"),
        pytest.param(Usage(1 << 70, 1 << 70), id="more than there is"),
    ],
)
def test_beyond_that_we_count_and_say_why(usage: Usage) -> None:
    assert judged(usage) == OURS


@pytest.mark.parametrize("usage", [Usage(1 << 31, 2), Usage(7, 1 << 31)])
def test_a_free_models_usage_that_no_column_holds_is_not_believed(usage: Usage) -> None:
    most = MAX_TOKENS
    huge = replace(PAID, price=FREE, sampled_count=128, max_output_tokens=most, max_prompt_tokens=1 << 40)
    assert judged(usage, huge) == OURS
    assert judged(Usage(most, most), huge) == (UsageSource.UPSTREAM, None, most, most)


def test_the_upstreams_usage_may_include_answers_that_were_not_shown() -> None:
    best_of = replace(PAID, sampled_count=4, reserved_nanodollars=100_000)
    assert judged(Usage(7, 40), best_of) == (UsageSource.UPSTREAM, None, 7, 40)
    assert judged(Usage(7, 41), best_of) == OURS


def test_a_row_of_an_older_version_has_its_cap_and_its_hold() -> None:
    old = replace(PAID, sampled_count=None, max_prompt_tokens=None)
    assert judged(Usage(30, 10), old) == (UsageSource.UPSTREAM, None, 30, 10)
    assert judged(Usage(30, 11), old) == judged(Usage(1_000, 1), old) == OURS


def test_what_is_free_is_bounded_by_tokens_only() -> None:
    free = replace(PAID, reserved_nanodollars=0, price=FREE)
    assert judged(Usage(100, 10), free) == (UsageSource.UPSTREAM, None, 100, 10)
    assert judged(Usage(101, 10), free) == OURS


LEFT = End(Ending.CLIENT_LEFT, None, (THERE,))


def cut_off(prompt: Usage | None, *more: AnyDelta, run: Claimed = PAID) -> Tokens:
    """Return what an answer costs that its client left, where the upstream has said this of the prompt."""
    counted = heard(Started(prompt_usage=prompt), Text(" the of"), *more)
    settled = run_usage.settlement(run, counted, LEFT, run_usage.prompt_tokens(REQUEST))
    assert settled.usage_source is UsageSource.COUNTED
    return settled.tokens


def test_of_an_answer_that_is_cut_off_the_upstream_has_counted_the_prompt() -> None:
    """A client that leaves before the end must not have its pictures for nothing."""
    sent = Usage(40, 0, 20, cache_write_tokens=10, cache_write_1h_tokens=5)
    assert cut_off(sent) == Tokens(40, 2, 20, None, 10, 5)
    assert cut_off(sent, Reasoning(" the")) == Tokens(40, 3, 20, 1, 10, 5)


@pytest.mark.parametrize(
    ("prompt", "more"),
    [
        pytest.param(None, [], id="it said nothing"),
        pytest.param(Usage(101, 0), [], id="more than fits the context"),
        pytest.param(Usage(49, 0), [], id="more than was held"),
        pytest.param(Usage(40, 0), [Usage(1 << 70, 2)], id="its usage is implausible"),
    ],
)
def test_if_it_is_not_believed_we_count_the_prompt(prompt: Usage | None, more: list[AnyDelta]) -> None:
    assert cut_off(prompt, *more) == Tokens(run_usage.prompt_tokens(REQUEST), 2)


def test_a_prompt_that_the_upstream_finds_far_too_short_is_counted() -> None:
    messages = [{"role": "user", "content": " the" * 40}]
    text = parse_chat(json.dumps({"model": "m", "messages": messages}).encode())
    counted = heard(Started(prompt_usage=Usage(1, 0)), Text(" the"))
    settled = run_usage.settlement(PAID, counted, LEFT, run_usage.prompt_tokens(text))
    assert settled.tokens.prompt_tokens == run_usage.prompt_tokens(text)


def test_a_receipt_says_that_a_usage_was_added() -> None:
    assert judged(Usage(7, 4, is_added=True)) == (UsageSource.UPSTREAM, UsageNote.ADDED, 7, 4)
    assert judged(Usage(7, 40, is_added=True)) == OURS
