"""What the death of one of several servers of streams excuses: losses of its own generations only."""

import pytest

from tests.faults.bookkeeper import Row
from tests.faults.soak_verdict import FORGOTTEN_TOKENS, Loss, Outages, Verdict, harmed_by_another_server
from tests.faults.soak_visits import Heard, Visit
from tests.faults.test_soak_verdict import FIVE, LOST, NOTHING, REPORT, heard, told_an_error, violations

OWN, ANOTHER = Outages(valkey_losses=[Loss(11.0, "7")]), Outages(valkey_losses=[Loss(11.0, "6")])
LATER = Outages(valkey_losses=[Loss(13.0, "7")])


def shown(code: str) -> Heard:
    return heard(usage=None, error_codes=[code])


def harmed(connection: Heard, outages: Outages) -> list[str]:
    return list(harmed_by_another_server([Visit("reads", "five", "guest 7", [connection])], outages))


@pytest.mark.parametrize(
    ("row", "seen", "lost_at", "expected"),
    [
        (LOST, 60, 11.0, []),
        (LOST, 60, 30.0, ["saw 60 tokens, charged 0"]),
        (LOST, FORGOTTEN_TOKENS + 1, 11.0, [f"saw {FORGOTTEN_TOKENS + 1} tokens, charged 0"]),
        (NOTHING, 60, 11.0, ["saw 60 tokens, charged 0"]),
    ],
    ids=["lost with its log", "its log was lost later", "more than since a heartbeat", "its worker lived"],
)
def test_only_a_dead_worker_whose_log_is_lost_is_charged_as_of_its_last_heartbeat(
    row: Row, seen: int, lost_at: float, expected: list[str]
) -> None:
    assert (
        violations(
            told_an_error(seen), rows=(row,), sent=(90,), outages=Outages(valkey_losses=[Loss(lost_at, "7")])
        )
        == expected
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [(404, "not_found"), (400, "previous_response_not_found"), (410, "stream_expired")],
)
def test_what_was_kept_is_there_unless_valkey_has_lost_it(status: int, code: str) -> None:
    gone = heard(0, usage=None, status=status, error_codes=[code], is_document=True)
    found = violations(heard(), gone, act="resumes")
    assert found == [f"{status} ['{code}'], and Valkey has lost nothing"]
    assert violations(heard(), gone, act="resumes", outages=Outages(valkey_losses=[Loss(11.0, "7")])) == []


@pytest.mark.parametrize(("outages", "is_excused"), [(OWN, True), (ANOTHER, False)])
def test_only_the_own_server_explains_a_lost_log(outages: Outages, is_excused: bool) -> None:
    gone = heard(0, usage=None, status=404, error_codes=["not_found"], is_document=True)
    assert (violations(heard(), gone, act="resumes", outages=outages) == []) is is_excused
    found = violations(told_an_error(60), rows=(LOST,), sent=(90,), outages=outages)
    assert (found == []) is is_excused


@pytest.mark.parametrize("code", ["stream_unavailable", "request_lost"])
@pytest.mark.parametrize(
    ("outages", "is_excused"),
    [(OWN, True), (ANOTHER, False), (LATER, False), (Outages(web_kills=[(11.0, 15.0)]), True)],
    ids=["its own", "another", "later", "a host was cut off"],
)
def test_a_stream_may_be_lost_with_its_own_server_only(code: str, outages: Outages, is_excused: bool) -> None:
    assert (harmed(shown(code), outages) == []) is is_excused


def test_another_error_is_none_of_a_server() -> None:
    assert harmed(shown("worker_lost"), ANOTHER) == []


def test_ends_are_counted_by_the_server_that_died() -> None:
    visits = [Visit("reads", "five", "guest 7", [heard(), shown("stream_unavailable")])]
    for outages, place in ((OWN, "on it"), (ANOTHER, "on another")):
        table = Verdict.of(visits, [FIVE], REPORT, [], outages).tables["when a stream server died"]
        assert table == {f"{place}: usage sent": 1, f"{place}: stream_unavailable": 1}
