"""Model names say what the scripted upstream does."""

import pytest

from bench.behaviour import Behaviour, answer_tokens


def test_a_name_gives_a_behaviour() -> None:
    behaviour = Behaviour.parse("tok200-d20-f300-b16-x10-e429")
    assert behaviour == Behaviour(
        tokens=200,
        delay_ms=20,
        first_token_ms=300,
        tokens_per_write=16,
        drop_after_tokens=10,
        error_status=429,
    )


def test_the_first_token_takes_as_long_as_any_other_unless_set_otherwise() -> None:
    assert Behaviour.parse("tok64-d20").first_ms == 20
    assert Behaviour.parse("tok64-d20-f0").first_ms == 0


@pytest.mark.parametrize(
    "name", ["", "gpt-4o", "tok0", "tok", "d20", "tok64-z1", "tok64-b0", "tok64-d1.5", "tok64--d0"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a benchmark model"):
        Behaviour.parse(name)


def test_every_token_starts_with_the_letter() -> None:
    assert answer_tokens("k", 3) == ["k0", " k1", " k2"]
