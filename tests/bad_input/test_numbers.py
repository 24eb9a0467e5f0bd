"""Numbers that are none, or not the one that a parameter takes; nothing is coerced."""

import pytest

from tests.bad_input.bodies import CHAT, POSTED, TEXT, body_for, refusal, with_member
from tests.chatapi.http_client import Client

pytestmark = [pytest.mark.xdist_group("bad_input"), pytest.mark.timeout(120)]

FLOATS = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
INTEGERS = ("max_tokens", "n", "seed")
ONLY_CHAT = ("max_completion_tokens", "top_logprobs")
ONLY_TEXT = ("logprobs", "best_of")

NO_JSON = [
    "NaN",
    "-NaN",
    "Infinity",
    "-Infinity",
    "nan",
    "inf",
    "+1",
    "01",
    ".5",
    "5.",
    "1e",
    "0x10",
    "1_0",
    "١٢",
    "1,5",
    "--1",
    "1n",
]
OUT_OF_RANGE = ["1e400", "-1e400", "1" * 5_000]
NO_NUMBER = ['"5"', '"١٢"', '"1_0"', '"NaN"', '""', "true", "false", "{}", "[]", "[1]"]
NO_INTEGER = ["1.0", "1.5", "-0.0"]
TOO_FAR = {
    "temperature": ["-0.1", "2.1", "1e308"],
    "top_p": ["-0.1", "1.1"],
    "frequency_penalty": ["-2.1", "2.1"],
    "presence_penalty": ["-2.1", "2.1"],
    "max_tokens": ["-1", "2147483648", "9223372036854775808", "1" * 300],
    "max_completion_tokens": ["-1", "0", "2147483648"],
    "n": ["-1", "0", "-0", "129", "9223372036854775808"],
    "seed": ["9223372036854775808", "-9223372036854775809"],
    "top_logprobs": ["-1", "21"],
    "logprobs": ["-1", "6"],
    "best_of": ["-1", "21"],
}


def routes(parameter: str) -> tuple[str, ...]:
    """Return the routes that accept this parameter."""
    return (TEXT,) if parameter in ONLY_TEXT else (CHAT,) if parameter in ONLY_CHAT else (CHAT, TEXT)


EACH = [(path, parameter) for parameter in TOO_FAR for path in routes(parameter)]


def shown(suspect: Client, path: str, parameter: str, number: str) -> tuple[int, str, str | None]:
    """Return the refusal of the body with this number."""
    return refusal(suspect.send("POST", path, with_member(body_for(path), parameter, number)))


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("number", NO_JSON)
def test_what_is_no_number_in_json_is_no_json(suspect: Client, path: str, number: str) -> None:
    assert shown(suspect, path, "temperature", number) == (400, "invalid_json", None)


@pytest.mark.parametrize(("path", "parameter"), EACH)
def test_a_number_beyond_every_type_names_its_parameter(suspect: Client, path: str, parameter: str) -> None:
    for number in OUT_OF_RANGE:
        assert shown(suspect, path, parameter, number) == (400, "invalid_value", parameter)


@pytest.mark.parametrize("path", POSTED)
@pytest.mark.parametrize("number", OUT_OF_RANGE[:2])
def test_a_number_beyond_every_type_is_refused_where_nobody_looks(
    suspect: Client, path: str, number: str
) -> None:
    assert shown(suspect, path, "unknown", number)[:2] == (400, "invalid_value")


@pytest.mark.parametrize(("path", "parameter"), [each for each in EACH if each[1] != "logprobs"])
def test_nothing_is_made_a_number(suspect: Client, path: str, parameter: str) -> None:
    for value in NO_NUMBER:
        assert shown(suspect, path, parameter, value) == (400, "invalid_type", parameter)


@pytest.mark.parametrize(("path", "parameter"), [each for each in EACH if each[1] not in FLOATS])
def test_no_fraction_is_made_an_integer(suspect: Client, path: str, parameter: str) -> None:
    for number in NO_INTEGER:
        assert shown(suspect, path, parameter, number) == (400, "invalid_type", parameter)


@pytest.mark.parametrize(("path", "parameter"), EACH)
def test_a_number_out_of_its_range_is_refused(suspect: Client, path: str, parameter: str) -> None:
    for number in TOO_FAR[parameter]:
        assert shown(suspect, path, parameter, number) == (400, "invalid_value", parameter)


LOGIT_BIASES = {
    '{"1": "5"}': "invalid_type",
    '{"1": true}': "invalid_type",
    '{"1": 1.5}': "invalid_type",
    '{"1": 101}': "invalid_value",
    '{"1": 9223372036854775808}': "invalid_value",
    '{"-1": 1}': "invalid_value",
    '{"١": 1}': "invalid_value",
    '{"1_0": 1}': "invalid_value",
    '{"": 1}': "invalid_value",
    "[1]": "invalid_type",
    "{" + ",".join(f'"{number}": 1' for number in range(1_025)) + "}": "invalid_value",
}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("bias", LOGIT_BIASES, ids=lambda bias: bias[:20])
def test_a_wrong_logit_bias_is_refused(suspect: Client, path: str, bias: str) -> None:
    assert shown(suspect, path, "logit_bias", bias) == (400, LOGIT_BIASES[bias], "logit_bias")


TAKEN = [
    ("temperature", "-0"),
    ("temperature", "-0.0"),
    ("temperature", "1"),
    ("temperature", "1.0"),
    ("temperature", "2e0"),
]
TAKEN += [
    ("seed", "-9223372036854775808"),
    ("seed", "9223372036854775807"),
    ("max_tokens", "2147483647"),
    ("n", "1"),
    ("top_p", "1e-300"),
]


@pytest.mark.parametrize(("parameter", "number"), TAKEN)
def test_a_number_on_its_bound_is_taken(client: Client, parameter: str, number: str) -> None:
    assert client.send("POST", CHAT, with_member(body_for(CHAT), parameter, number)).status == 200
