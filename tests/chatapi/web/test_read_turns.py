"""Which sockets may be read in a turn of the event loop: all without load, and each once a round with it."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial

import pytest

from chatapi.web.server import read_turns
from chatapi.web.server.read_turns import POLLED_PER_TURN, ReadTurns


class Reader:
    """A socket that always has data."""

    is_polled = True

    def poll_again(self) -> None:
        self.is_polled = True


class Loop:
    """An event loop, as far as it matters here: its clock, its sockets, and the end of a turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.readers: defaultdict[str, Reader] = defaultdict(Reader)
        self.polls = 0
        self.soon: list[Callable[[], None]] = []
        self.turns = ReadTurns(0.02, self.soon.append)
        monkeypatch.setattr(read_turns, "monotonic", lambda: self.now)

    def turn(self, readers: str, read_seconds: float) -> str:
        """Offers each polled reader a read that takes so long; returns those that read."""
        read = ""
        for name in readers:
            reader = self.readers[name]
            if reader.is_polled:
                self.polls += 1
                reader.is_polled = self.turns.may_read(reader)
                self.now += read_seconds if reader.is_polled else 0
                read += name if reader.is_polled else ""
        soon = self.soon.copy()
        self.soon.clear()
        for each in soon:
            each()
        return read


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(monkeypatch)


def test_without_load_all_are_read_in_each_turn(loop: Loop) -> None:
    assert [loop.turn("abcde", 0.001) for _ in range(3)] == ["abcde"] * 3


def test_with_load_a_turn_is_bounded_and_each_has_its_turn(loop: Loop) -> None:
    assert [loop.turn("abcdefgh", 0.009) for _ in range(4)] == ["abc", "def", "gh", "abc"]


def test_a_late_client_does_not_wait_for_those_that_have_read(loop: Loop) -> None:
    assert loop.turn("abcdef", 0.009) == "abc"
    assert loop.turn("abcdefz", 0.004) == "defz"


def test_a_round_ends_when_those_left_out_have_left(loop: Loop) -> None:
    assert loop.turn("abcdef", 0.009) == "abc"
    assert loop.turn("abc", 0.009) == ""
    assert loop.turn("abc", 0.009) == "abc"


def test_a_round_ends_however_many_come_meanwhile(loop: Loop) -> None:
    crowd = "".join(map(chr, range(1_000, 1_100)))
    read = loop.turn(f"a{crowd}", 0.001)
    assert read.count("a") == 1
    for number in range(20):
        late = "".join(map(chr, range(2_000 + 100 * number, 2_100 + 100 * number)))
        read += loop.turn(f"{late}a{crowd}", 0.001)
    assert read.count("a") > 1
    assert {*crowd} <= {*read}


def test_sockets_that_are_left_out_are_not_polled_for_nothing(loop: Loop) -> None:
    """H5: four thousand of one client would hold up the loop by being refused."""
    crowd = "".join(map(chr, range(1_000, 5_000)))
    read = loop.turn(crowd, 0.001)
    assert loop.polls == len(crowd)
    second = loop.turn(f"z{crowd}", 0.001)
    assert "z" in second, "who comes meanwhile does not wait for them"
    assert loop.polls <= len(crowd) + 1 + len(read) + POLLED_PER_TURN
    read += second + "".join(loop.turn(crowd, 0.001) for _ in range(len(crowd) // len(read) + 1))
    assert {*read} == {*crowd, "z"}, "each has its turn"


def test_what_a_turn_does_before_its_reads_does_not_take_their_time(loop: Loop) -> None:
    crowd = "".join(map(chr, range(1_000, 5_000)))
    loop.turn(crowd, 0.001)
    loop.now += 1
    assert loop.turn(crowd, 0.001)


def test_sockets_that_are_left_out_are_read_without_others(loop: Loop) -> None:
    crowd = "".join(map(chr, range(1_000, 5_000)))
    read = loop.turn(crowd, 0.001)
    for reader in read:
        del loop.readers[reader]
    rest = "".join(loop.readers)
    while rest:
        gone = loop.turn(rest, 0.001)
        assert gone
        rest = "".join(name for name in rest if name not in gone)


def test_a_turn_ends_as_many_connections_as_it_has_time_for(loop: Loop) -> None:
    ended = []

    def end(connection: str) -> None:
        loop.now += 0.009
        ended.append(connection)

    for connection in "abcde":
        loop.turns.end(partial(end, connection))
    for expected in ("abc", "abcde"):
        loop.soon.pop()()
        assert "".join(ended) == expected
    assert loop.soon == []


def test_an_ending_that_fails_does_not_keep_the_others_open(loop: Loop) -> None:
    ended = []
    loop.turns.end(lambda: ended.append(1 // 0))
    loop.turns.end(lambda: ended.append(1))
    with pytest.raises(ZeroDivisionError):
        loop.soon.pop()()
    loop.soon.pop()()
    assert ended == [1]
