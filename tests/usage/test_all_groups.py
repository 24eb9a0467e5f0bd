"""A chart of many groups colours a few: the others are listed, and the table's total has all of them."""

import re
from typing import Any

import pytest
from django.db.models import Sum

import chatapi.urls  # noqa: F401  it loads the admin's pages
from tests.admin_pages import client_of
from tests.cast import Person, run
from usage.formatting import money
from usage.models import LedgerEntry
from usage.pages import overview_form
from usage.pricing import Tokens

MODELS = [f"model {number}" for number in range(12)]
PAGES = ["/admin/", "/console/{}/overview", "/console/{}/usage"]


@pytest.fixture
def spent(alice: Person) -> Person:
    """Return a person who used many models, the last ones most."""
    for number, model in enumerate(MODELS):
        run(alice, model=model, tokens=Tokens(1_000 * (number + 1), 10))
    return alice


def opened(person: Person, path: str, query: str = "days=1&group=model") -> Any:
    response = client_of(person.user).get(f"{path.format(person.project.organization_id)}?{query}")
    assert response.status_code == 200, response.content
    return response


def listed(page: Any) -> list[str]:
    return [line.label for line in page.context["all_groups"].lines]


@pytest.mark.parametrize("path", PAGES)
def test_the_group_of_others_leads_to_a_list_of_all(spent: Person, path: str) -> None:
    page = opened(spent, path)
    assert page.context["all_groups"] is None
    other = page.context["chart"].legend[-1].group
    assert other.name == "other"
    assert f'<a href="{other.url.replace("&", "&amp;")}">other</a>' in page.content.decode()
    all_of = client_of(spent.user).get(other.url.partition("#")[0])
    assert f'id="{other.url.partition("#")[2]}"' in all_of.content.decode()
    assert listed(all_of) == MODELS[::-1]
    (row,) = client_of(spent.user).get(all_of.context["all_groups"].lines[-1].url).context["page"].rows
    assert row.model == MODELS[0]
    # Another grouping begins with its own chart.
    assert not any("groups=" in each.url for each in all_of.context["form"].group_links())


@pytest.mark.parametrize("path", PAGES)
def test_many_groups_have_pages(spent: Person, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_form, "GROUPS_PER_PAGE", 5)
    seen, page = [], opened(spent, path, "days=1&group=model&groups=1")
    while page.context["all_groups"].next_url:
        assert page.context["all_groups"].count == 12
        seen += listed(page)
        page = client_of(spent.user).get(page.context["all_groups"].next_url)
    assert seen + listed(page) == MODELS[::-1]
    assert listed(client_of(spent.user).get(page.context["all_groups"].previous_url)) == MODELS[6:1:-1]
    assert client_of(spent.user).get(page.context["all_groups"].close_url).context["all_groups"] is None


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("page", ["0", "x", "1001"])
def test_a_page_that_cannot_be_is_refused(alice: Person, path: str, page: str) -> None:
    url = path.format(alice.project.organization_id)
    assert client_of(alice.user).get(f"{url}?days=1&group=model&groups={page}").status_code == 400


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("count", [3, 12])
def test_the_tables_total_is_the_ledgers(alice: Person, path: str, count: int) -> None:
    for number, model in enumerate(MODELS[:count]):
        run(alice, model=model, tokens=Tokens(1_000 * (number + 1), 10))
    spend = opened(alice, path, "days=1&group=model&measure=spend").content.decode()
    cells = re.findall(
        r"<td class=\"num\">([^<]*)</td>", re.findall(r"<tfoot>(.*?)</tfoot>", spend, re.DOTALL)[0]
    )
    total = LedgerEntry.objects.aggregate(sum=Sum("amount_nanodollars"))["sum"]
    assert cells[-1] == money(total)
    assert len(cells) == min(count, 7) + 1
