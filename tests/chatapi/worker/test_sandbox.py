"""The sandbox engine: what client teams may rely on when they integrate against it."""

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatapi.wire import tokens
from chatapi.wire.deltas import Finished, Reasoning, Refusal, Started, Text, ToolCall, Usage
from chatapi.worker.engines import EngineError, Timeouts
from chatapi.worker.engines.sandbox import answer as answer_module
from chatapi.worker.engines.sandbox import pace
from chatapi.worker.engines.sandbox.engine import SandboxEngine
from chatapi.worker.engines.sandbox.script import BEHAVIOURS, ERRORS
from chatapi.worker.runs import heavy_work
from tests.chatapi.worker.sandbox_calls import (
    answer_to,
    batches_of,
    broken_off,
    call,
    deltas_of,
    text_call,
    text_of,
    usage_of,
)
from tests.wire.folding import collect


@pytest.mark.parametrize(
    "name", [name for name, script in BEHAVIOURS.items() if script.breaks_after is None and not script.error]
)
async def test_every_good_end_keeps_the_order_of_the_protocol(name: str) -> None:
    deltas = await deltas_of(call(f"[sandbox first_delay_ms=0] {name}", upstream_model=name, n=2))
    kinds = [type(delta) for delta in deltas]
    assert kinds[0] is Started
    assert set(kinds[1:-3]) <= {Text, Reasoning, Refusal, ToolCall}
    assert kinds[-3:] == [Finished, Finished, Usage]
    assert [delta.index for delta in deltas[-3:-1] if isinstance(delta, Finished)] == [0, 1]


@given(st.text(max_size=30), st.integers(0, 60), st.integers(1, 4), st.integers(0, 40))
@settings(max_examples=25)
def test_the_same_request_gives_the_same_deltas(said: str, length: int, n: int, cap: int) -> None:
    asked = call(
        f"[sandbox tokens={length}] {said.encode('utf-8', 'replace').decode().replace(chr(0), '')}",
        n=n,
        cap=cap,
    )
    assert asyncio.run(batches_of(asked)) == asyncio.run(batches_of(asked))


async def test_another_prompt_or_seed_gives_another_text() -> None:
    answers = [await answer_to("one"), await answer_to("two"), await answer_to("one", seed=1)]
    assert len({text_of(answer) for answer in answers}) == 3


async def test_the_deployments_model_wins_over_the_requests() -> None:
    assert text_of(await answer_to("Hi", model="sandbox-echo")) == "Hi"
    assert text_of(await answer_to("Hi", model="sandbox-echo", upstream_model="sandbox")) != "Hi"
    assert text_of(await answer_to("Hi", model="gpt-4o")) == text_of(await answer_to("Hi"))


@pytest.mark.parametrize("encoding", tokens.ENCODINGS)
async def test_each_delta_of_plain_text_is_one_token_to_everybody(encoding: str) -> None:
    deltas = await deltas_of(call("[sandbox tokens=200]"))
    pieces = [delta.text for delta in deltas if isinstance(delta, Text)]
    assert len(pieces) == 200 == tokens.count("".join(pieces), encoding)
    assert all(tokens.count(piece, encoding) == 1 for piece in pieces)


async def test_usage_counts_the_prompt_and_what_was_emitted() -> None:
    asked = call("[sandbox tokens=20 reasoning_tokens=5] Grüße", n=3)
    usage = usage_of(collect(await deltas_of(asked)))
    assert (
        usage.prompt_tokens == tokens.count(asked.request.prompt_text) + asked.request.prompt.overhead_tokens
    )
    assert (usage.completion_tokens, usage.reasoning_tokens, usage.cached_tokens) == (75, 15, 0)


@pytest.mark.parametrize(
    ("marker", "cached", "written", "written_1h"),
    [
        ("cached_tokens=3", 3, None, None),
        ("cache_write_tokens=4", 0, 4, None),
        ("cached_tokens=3 cache_write_tokens=4 cache_write_1h_tokens=1", 3, 4, 1),
        ("cache_write_1h_tokens=2", 0, 2, 2),
        ("cache_write_tokens=4 cache_write_1h_tokens=9", 0, 4, 4),
    ],
)
async def test_markers_choose_the_kinds_of_input(
    marker: str, cached: int, written: int | None, written_1h: int | None
) -> None:
    usage = usage_of(await answer_to(f"Hello [sandbox {marker}]"))
    assert (usage.cached_tokens, usage.cache_write_tokens, usage.cache_write_1h_tokens) == (
        cached,
        written,
        written_1h,
    )


async def test_no_more_tokens_are_cached_than_the_prompt_has() -> None:
    usage = usage_of(await answer_to("Hello [sandbox cached_tokens=5 cache_write_tokens=10000000]"))
    assert (usage.cached_tokens, usage.uncached_tokens) == (5, 0)


async def test_echo_says_the_last_user_message_without_markers() -> None:
    said = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "Grüße [sandbox] 👩‍🚀"},
    ]
    answer = await answer_to(messages=said, upstream_model="sandbox-echo")
    assert text_of(answer) == "Grüße  👩‍🚀"
    assert usage_of(answer).completion_tokens == tokens.count(text_of(answer))


async def test_choices_differ_and_come_in_turns() -> None:
    deltas = await deltas_of(call("[sandbox tokens=3]", n=3))
    assert [delta.index for delta in deltas if isinstance(delta, Text)] == [0, 1, 2] * 3
    completion = collect(deltas)
    assert len({text_of(completion, index) for index in range(3)}) == 3


async def test_reasoning_comes_first_and_is_counted_apart() -> None:
    answer = await answer_to(upstream_model="sandbox-reasoning")
    assert tokens.count(answer.choices[0].reasoning or "") == 16 == usage_of(answer).reasoning_tokens
    assert text_of(answer)


async def test_a_refusal_is_no_text() -> None:
    answer = await answer_to(upstream_model="sandbox-refusal", logprobs=True)
    assert answer.choices[0].refusal == "I'm sorry, but I can't help with that."
    assert answer.choices[0].text is None
    assert (
        "".join(known.token for known in answer.choices[0].refusal_logprobs or [])
        == answer.choices[0].refusal
    )
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("sandbox-length", "length"), ("sandbox-content-filter", "content_filter"), ("sandbox", "stop")],
)
async def test_a_model_name_chooses_the_finish_reason(name: str, reason: str) -> None:
    assert (await answer_to(upstream_model=name)).choices[0].finish_reason == reason


async def test_a_marker_chooses_the_finish_reason() -> None:
    assert (await answer_to("Hi [sandbox finish=content_filter]")).choices[
        0
    ].finish_reason == "content_filter"


@pytest.mark.parametrize(
    "said", ["[sandbox tokens=50]", "[sandbox reasoning_tokens=50]", "[sandbox tool_calls=3]"]
)
async def test_the_cap_cuts_each_choice_and_says_so(said: str) -> None:
    answer = await answer_to(said, cap=7, n=2)
    assert [answer.choices[index].finish_reason for index in range(2)] == ["length", "length"]
    assert usage_of(answer).completion_tokens == 14


async def test_an_answer_has_a_bound_for_all_choices_with_their_alternatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_module, "MAX_ANSWER_UNITS", 60)
    several = await answer_to("[sandbox tokens=50]", n=3)
    assert usage_of(several).completion_tokens == 60
    assert {choice.finish_reason for choice in several.choices.values()} == {"length"}
    with_alternatives = await answer_to("[sandbox tokens=50]", logprobs=True, top_logprobs=1)
    assert usage_of(with_alternatives).completion_tokens == 6  # a token and two log probabilities: 11 units
    echoed = collect(await deltas_of(text_call(prompt="word " * 100, echo=True)))
    assert echoed.choices[0].finish_reason == "length"
    assert usage_of(echoed).completion_tokens == 0


async def test_a_stop_string_ends_the_text_before_it() -> None:
    whole = text_of(await answer_to("stories"))
    stop = whole[20:27]
    answer = await answer_to("stories", stop=["never", stop], logprobs=True)
    assert text_of(answer) == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert "".join(known.token for known in answer.choices[0].logprobs or []) == text_of(answer)


async def test_log_probabilities_match_the_text_and_are_probabilities() -> None:
    answer = await answer_to(logprobs=True, top_logprobs=20)
    known = answer.choices[0].logprobs or []
    assert "".join(token.token for token in known) == text_of(answer)
    for token in known:
        ranked = [alternative.logprob for alternative in token.top_logprobs]
        assert (token.top_logprobs[0].token, ranked[0]) == (token.token, token.logprob)
        assert ranked == sorted(ranked, reverse=True)
        assert len(ranked) == len({alternative.token for alternative in token.top_logprobs}) == 20
        assert sum(map(math.exp, ranked)) <= 1
        assert bytes(token.bytes or []) == token.token.encode()


async def test_log_probabilities_come_only_when_asked_for() -> None:
    assert (await answer_to()).choices[0].logprobs is None
    assert all(not token.top_logprobs for token in (await answer_to(logprobs=True)).choices[0].logprobs or [])


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_before_the_first_token_has_its_status(name: str) -> None:
    got, failure = await broken_off(call(f"[sandbox error={name}]"))
    assert (got, failure) == ([], ERRORS[name])


async def test_the_time_to_wait_can_be_chosen() -> None:
    _, failure = await broken_off(call("[sandbox error=rate_limit retry_after_ms=2500]"))
    assert (failure.status, failure.retry_after_ms) == (429, 2500)


@pytest.mark.parametrize(
    ("said", "pieces"), [("Hi", 5), ("[sandbox after=2]", 2), ("[sandbox tokens=3 after=9]", 3)]
)
async def test_an_error_in_mid_stream_comes_after_that_many_tokens(said: str, pieces: int) -> None:
    got, failure = await broken_off(call(said, upstream_model="sandbox-error-midstream"))
    assert [type(delta) for delta in got] == [Started] + [Text] * pieces
    assert failure.code == "server_error"


async def test_a_stall_runs_into_the_deployments_timeout() -> None:
    timeouts = Timeouts(first_delta_ms=10, between_deltas_ms=20)
    got, failure = await broken_off(call("[sandbox stall_after=3]", timeouts=timeouts))
    assert (len(got), failure.status, failure.code) == (4, 504, "upstream_timeout")
    got, failure = await broken_off(call(upstream_model="sandbox-slow-start", timeouts=timeouts))
    assert (got, failure.code) == ([], "upstream_timeout")


@pytest.mark.parametrize(("said", "deltas"), [
    ("[sandbox tokens=9 delay_ms=40]", 4),
    ("[sandbox first_delay_ms=60000]", 0),
    ("[sandbox first_delay_ms=600000]", 0),
    ("[sandbox stall_after=3]", 4),
])  # fmt: skip
async def test_an_answer_that_takes_too_long_runs_into_the_deployments_timeout(
    said: str, deltas: int
) -> None:
    async with asyncio.timeout(5):
        got, failure = await broken_off(call(said, timeouts=Timeouts(total_ms=100)))
    assert (len(got), failure.code) == (deltas, "upstream_timeout")


async def test_a_stall_can_be_cancelled() -> None:
    stream = SandboxEngine().stream(call(upstream_model="sandbox-stall"))
    got = [await anext(stream), await anext(stream)]
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(got[1]) == 5


async def test_tokens_come_on_an_absolute_schedule() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    stream = SandboxEngine().stream(call("[sandbox tokens=4 delay_ms=10 first_delay_ms=30]"))
    due = []
    async for batch in stream:
        if isinstance(batch[0], Text):
            due.append(loop.time() - started)
        await asyncio.sleep(0.004)  # a reader that takes its time does not push the later tokens back
    assert due[0] >= 0.03
    assert due[3] >= 0.06
    assert len(due) == 4


async def test_without_a_delay_much_comes_at_once_but_the_loop_turns() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    batches = await batches_of(call("[sandbox tokens=1000]"))
    turning.cancel()
    assert turns >= 15  # once a batch: 1000 deltas in 64s
    assert len(batches) < 20


async def test_a_bad_marker_is_a_400_that_names_it() -> None:
    got, failure = await broken_off(call("Hi [sandbox tokns=3]"))
    assert (got, failure.status, failure.type, failure.param) == (
        [],
        400,
        "invalid_request_error",
        "messages",
    )
    assert "'tokns=3' is unknown" in failure.message


async def test_only_markers_of_the_last_user_message_count() -> None:
    messages = [
        {"role": "user", "content": "[sandbox bad]"},
        {"role": "user", "content": [{"type": "text", "text": "[sandbox tokens=2]"}]},
    ]
    assert usage_of(await answer_to(messages=messages)).completion_tokens == 2
    assert (
        usage_of(await answer_to(messages=[{"role": "system", "content": "[sandbox bad]"}])).completion_tokens
        == 32
    )
    assert (
        text_of(await answer_to("[sandboxed] [sandbox-echo]", upstream_model="sandbox-echo"))
        == "[sandboxed] [sandbox-echo]"
    )


async def test_a_text_request_has_choices_for_each_prompt() -> None:
    completion = collect(await deltas_of(text_call(prompt=["one [sandbox tokens=4]", "two"], n=2)))
    assert len({text_of(completion, index) for index in range(4)}) == 4
    assert usage_of(completion).completion_tokens == 16


async def test_an_echoed_prompt_comes_first_and_costs_nothing() -> None:
    completion = collect(
        await deltas_of(text_call(prompt="Once upon a time", echo=True, logprobs=2, max_tokens=0, cap=0))
    )
    known = completion.choices[0].logprobs or []
    assert text_of(completion) == "Once upon a time" == "".join(token.token for token in known)
    assert (known[0].logprob, known[0].top_logprobs, len(known[1].top_logprobs)) == (-9999.0, [], 2)
    assert (usage_of(completion).completion_tokens, completion.choices[0].finish_reason) == (0, "length")


async def test_a_prompt_of_token_ids_is_read() -> None:
    completion = collect(await deltas_of(text_call(model="sandbox-echo", prompt=[13225, 2375])))
    assert text_of(completion) == "Hello world"
    assert usage_of(completion).prompt_tokens == 2


async def test_the_answers_of_an_organization_have_a_pace_beyond_a_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis keeps each answer for minutes, and a test key pays for none."""
    monkeypatch.setattr(pace, "BURST_S", 0.1)
    monkeypatch.setattr(pace, "BYTES_PER_S", 20_000)
    engine, loop = SandboxEngine(), asyncio.get_running_loop()

    async def duration_s(organization_id: int, said: str, timeouts: Timeouts | None = None) -> float:
        heavy_work.party.set(organization_id)
        started = loop.time()
        async for _ in engine.stream(call(said, timeouts=timeouts)):
            pass
        return loop.time() - started

    # About 12 bytes a token: 2,000 at once, then 20,000 a second.
    assert await duration_s(1, "[sandbox tokens=64]") < 0.1
    both = await asyncio.gather(
        *(asyncio.create_task(duration_s(1, "[sandbox tokens=320]")) for _ in range(2))
    )
    assert 0.2 < max(both) < 1
    assert await asyncio.create_task(duration_s(2, "[sandbox tokens=64]")) < 0.1
    with pytest.raises(EngineError) as raised:
        await duration_s(1, "[sandbox tokens=1000]", Timeouts(total_ms=200))
    assert raised.value.failure.code == "upstream_timeout"


async def test_answers_that_end_while_they_wait_for_the_pace_delay_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "BURST_S", 0.1)
    monkeypatch.setattr(pace, "BYTES_PER_S", 20_000)
    engine, loop = SandboxEngine(), asyncio.get_running_loop()
    heavy_work.party.set(1)

    async def play(said: str) -> None:
        async for _ in engine.stream(call(said)):
            pass

    await play("[sandbox tokens=320]")
    waiting = [asyncio.create_task(play("[sandbox tokens=2000]")) for _ in range(100)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    started = loop.time()
    await play("[sandbox tokens=1]")
    assert loop.time() - started < 1


async def test_the_pace_forgets_an_organization_that_owes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "BURST_S", 0.05)
    paces = pace.Pace()
    for organization_id in range(1_000):
        paces.count(organization_id, [Text("Hi")])
    async with asyncio.timeout(5):
        while len(paces._spent_until_s) > 1:
            await asyncio.sleep(0.01)
            paces.count(1, [Text("Hi")])
