"""Text requests: prompts in all their forms, and the parameters that chat does not have."""

from typing import Any

import pytest

from chatapi.wire.caps import MAX_CHOICES, MAX_PROMPTS, MAX_SUFFIX_CHARS
from chatapi.wire.invalid_request import InvalidRequest
from chatapi.wire.protocols.text_completions.request import TextRequest
from chatapi.wire.protocols.text_completions.request import parse as parse_text
from chatapi.wire.upstream.openai_request import upstream_body
from tests.wire.request_bodies import prompts_of, summary, text, text_refusal


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Once", ["Once"]),
        ("", [""]),
        (["Once"], ["Once"]),
        (["a", ""], ["a", ""]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ([2**31 - 1], [[2**31 - 1]]),
    ],
)
def test_it_takes_every_form_of_prompt(prompt: Any, prompts: list[Any]) -> None:
    request = text(prompt=prompt)
    assert prompts_of(request) == prompts
    assert request.choices_count == len(prompts)


@pytest.mark.parametrize("body", [b'{"model":"m"}', b'{"model":"m","prompt":null}'])
def test_a_missing_prompt_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_text(body)
    assert (refused.value.param, refused.value.code) == ("prompt", "missing_required_parameter")


@pytest.mark.parametrize(
    ("prompt", "param", "code"),
    [
        (5, "prompt", "invalid_type"),
        (True, "prompt", "invalid_type"),
        ({}, "prompt", "invalid_type"),
        ([], "prompt", "invalid_value"),
        ([[]], "prompt[0]", "invalid_value"),
        ([None], "prompt[0]", "invalid_type"),
        ([True], "prompt[0]", "invalid_type"),
        ([1, 1.0], "prompt[1]", "invalid_type"),
        ([-1], "prompt[0]", "invalid_value"),
        ([2**31], "prompt[0]", "invalid_value"),
        ([["a"]], "prompt[0][0]", "invalid_type"),
        ([1, "a"], "prompt", "invalid_value"),
        ([[1], 2], "prompt", "invalid_value"),
        (["a", [1]], "prompt", "invalid_value"),
        (["a"] * (MAX_PROMPTS + 1), "prompt", "invalid_value"),
    ],
)
def test_it_refuses_every_other_prompt(prompt: Any, param: str, code: str) -> None:
    assert text_refusal(prompt=prompt) == (param, code)


def test_null_is_absent() -> None:
    for name in set(TextRequest.__struct_fields__) - {"model", "prompt"}:
        assert text(**{name: None}) == text()


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"echo": 1}, "echo", "invalid_type"),
        ({"suffix": 1}, "suffix", "invalid_type"),
        ({"suffix": "x" * (MAX_SUFFIX_CHARS + 1)}, "suffix", "invalid_value"),
        ({"best_of": 21}, "best_of", "invalid_value"),
        ({"best_of": -1}, "best_of", "invalid_value"),
        ({"best_of": True}, "best_of", "invalid_type"),
        ({"best_of": 1, "n": 2}, "best_of", "invalid_value"),
        ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 2, "prompt": ["a"] * (MAX_CHOICES // 2 + 1)}, "n", "invalid_value"),
        ({"best_of": 20, "prompt": ["a"] * 7}, "n", "invalid_value"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"logprobs": -1}, "logprobs", "invalid_value"),
        ({"logprobs": 1.0}, "logprobs", "invalid_type"),
        ({"logprobs": "1"}, "logprobs", "invalid_type"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.0}, "max_tokens", "invalid_type"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"stop": []}, "stop", "invalid_value"),
    ],
)
def test_it_names_what_is_wrong(members: dict[str, Any], param: str, code: str) -> None:
    assert text_refusal(**members) == (param, code)


@pytest.mark.parametrize(
    ("logprobs", "count", "forwarded"),
    [(None, None, None), (False, None, None), (True, 1, 1), (0, 0, 0), (5, 5, 5)],
)
def test_logprobs_may_be_a_boolean_as_the_llama_dialect_has_it(
    logprobs: Any, count: int | None, forwarded: int | None
) -> None:
    request = text(logprobs=logprobs)
    assert request.logprobs_count == count
    body = upstream_body(request, model="m", max_output_tokens=16, extra_parameters=frozenset())
    assert body.get("logprobs") == forwarded
    assert not isinstance(body.get("logprobs"), bool)
    assert ("logprobs" in body) == (forwarded is not None)
    assert request.context == ({} if count is None else {"logprobs": True})


def test_it_limits_the_output_when_the_client_does_not() -> None:
    assert text().max_output_tokens == 16
    assert text(max_tokens=5).max_output_tokens == 5
    assert text(max_tokens=0, echo=True, logprobs=1).max_output_tokens == 0


def test_choices_are_counted_for_each_prompt() -> None:
    request = text(prompt=["a", "b"], n=3, best_of=5)
    assert (request.choices_count, request.sampled_count) == (6, 10)
    assert (text(best_of=0).choices_count, text(best_of=0).sampled_count) == (1, 1)


def test_all_answers_that_are_shown_can_be_streamed() -> None:
    assert text(best_of=2, n=2, stream=True).can_stream
    assert text(best_of=1, stream=True).can_stream
    assert not text(best_of=2).can_stream


def test_each_prompt_may_fill_the_context_window() -> None:
    assert summary(prompt=["a" * 9_000, "b" * 9_000]).prompt_tokens_bound(8_192) == 16_384
    assert summary(prompt=[[7] * 100, [7] * 50]).prompt_tokens_bound(8_192) == 150 + 2 * 16
    assert summary(prompt=[7] * 9_000, n=3).prompt_tokens_bound(8_192) == 8_192


def test_prompt_bytes_bound_the_tokens_of_every_form() -> None:
    assert text(prompt="é" * 100).prompt_bytes >= 200
    assert text(prompt=[7] * 100).prompt_bytes >= 100
    assert text(prompt=[[7] * 50, [8] * 50]).prompt.overhead_tokens == 100
    assert text(prompt=["a", "b"], suffix="c").prompt_text == "a\nb\nc"
    assert not text().prompt.has_media
