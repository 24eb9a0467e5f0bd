"""Which sockets may be read in a turn of the event loop: all without load, with it some of each client."""

from collections.abc import Callable
from functools import partial

import pytest

from chatapi.web.server import read_turns
from chatapi.web.server.read_turns import POLLED_PER_TURN, ReadTurns


class Reader:
    """A socket that always has data."""

    is_polled = True

    def __init__(self, client_network: str) -> None:
        self.client_network = client_network

    def poll_again(self) -> None:
        self.is_polled = True


class Readers(dict[str, Reader]):
    """Sockets by name: each of A to Z has a client of its own, all others have one together."""

    def __missing__(self, name: str) -> Reader:
        reader = self[name] = Reader(name if "A" <= name <= "Z" else "crowd")
        return reader


class Loop:
    """An event loop, as far as it matters here: its clock, its sockets, and the end of a turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.readers = Readers()
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
    assert [loop.turn("abcdefgh", 0.009) for _ in range(5)] == ["abc", "def", "gh", "abc", "def"]


def test_those_for_which_a_turn_was_too_short_come_next(loop: Loop) -> None:
    loop.turn("abcdefgh", 0.009)
    assert [loop.turn("hgfedcba", 0.009) for _ in range(4)] == ["hgf", "ed", "hgf", "cba"]


def test_a_client_with_one_socket_does_not_wait_for_those_of_another(loop: Loop) -> None:
    crowd = "".join(map(chr, range(1_000, 5_000)))
    loop.turn(crowd, 0.001)
    loop.turn(f"{crowd}Z", 0.0001)
    assert "Z" in loop.turn(f"{crowd}Z", 0.0001)


def test_clients_have_their_turns_however_many_there_are(loop: Loop) -> None:
    crowd = "".join(map(chr, range(1_000, 1_100)))
    read = loop.turn(f"{crowd}A", 0.001)
    for number in range(20):
        late = "".join(map(chr, range(2_000 + 100 * number, 2_100 + 100 * number)))
        read += loop.turn(f"{late}{crowd}AB", 0.001)
    assert read.count("A") > 3
    assert read.count("B") > 3
    assert {*crowd} <= {*read}


def test_sockets_that_wait_are_not_polled_for_nothing(loop: Loop) -> None:
    """H5: four thousand of one client would hold up the loop by being refused."""
    crowd = "".join(map(chr, range(1_000, 5_000)))
    read = loop.turn(crowd, 0.0001)
    assert loop.polls == len(crowd)
    read += loop.turn(crowd, 0.0001)
    assert loop.polls <= len(crowd) + len(read) + POLLED_PER_TURN
    read += "".join(loop.turn(crowd, 0.0001) for _ in range(len(crowd) // POLLED_PER_TURN))
    assert {*read} == {*crowd}, "each has its turn"


def test_sockets_that_have_nothing_to_read_any_more_do_not_hold_up_others(loop: Loop) -> None:
    crowd = "".join(map(chr, range(1_000, 1_100)))
    loop.turn(crowd, 0.009)
    assert not loop.turn("", 0.009)
    assert loop.turn(crowd[POLLED_PER_TURN + 3 :], 0.001)


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
