"""A model's prices as a timeline: what counts when, what it was before, and how much that is in percent."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Permission, User
from django.core.exceptions import BadRequest
from django.db.models.signals import pre_save
from django.test import Client, RequestFactory
from django.utils import timezone

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts.audit.models import AuditEntry
from chatapi.models import ServedModel
from chatapi.pages.price_admin import NewPriceForm
from chatapi.pages.price_timeline import MAX_PRICES, draw_chart, entries, percent
from tests.admin_pages import text
from usage.books import prices
from usage.models import Price
from usage.pages.forms import USDField
from usage.pricing import FREE, PRICE_COLUMNS, to_usd
from usage.pricing import Price as PriceValue

PAGE = "/admin/prices/?model=small"


@pytest.fixture
def history(small: ServedModel) -> None:
    """Create a price of last month, today's price, and two future ones."""
    now = timezone.now()
    prices.change("small", PriceValue(300_000_000, 75_000_000, 1_200_000_000), now - timedelta(days=30))
    prices.change(
        "small", PriceValue(180_000_000, 75_000_000, 600_000_000, 900_000_000), now + timedelta(days=10)
    )
    prices.change("small", FREE, now + timedelta(days=20))


def test_a_new_price_is_asked_for_in_dollars_column_by_column() -> None:
    fields = NewPriceForm.base_fields.items()
    assert {name for name, field in fields if isinstance(field, USDField)} == {*PRICE_COLUMNS}


def test_the_timeline_says_what_counts_when_and_what_it_was(root: Client, history: None) -> None:
    shown = text(root.get(PAGE))
    assert [re.findall(r"\b(upcoming|in effect|past)\b(?= Input)", shown)] == [
        ["upcoming", "upcoming", "in effect", "past"]
    ]
    assert "Input $0.15 → to $0.18 +20 % Cached input $0.075 unchanged Output $0.60 unchanged" in shown
    assert "Reasoning as output → to $0.90 +50 %" in shown
    assert "Input $0.30 → to $0.15 −50 %" in shown
    assert "Input $0.18 → to $0.00 free now" in shown


def test_the_chart_has_a_text_and_every_curve_a_name(root: Client, history: None) -> None:
    page = root.get(PAGE).content.decode()
    assert 'role="img" aria-labelledby="chart-title chart-desc"' in page
    assert "A line for each of input, cached input, output, reasoning" in page
    for name in ("Input", "Cached input", "Output", "Reasoning"):
        assert re.search(rf'<li><i class="colour-\d"></i>{name}</li>', page)


def test_the_chart_s_curves_are_whole_and_within_the_plot(history: None) -> None:
    chart = draw_chart(list(Price.objects.order_by("effective_from")), timezone.now())
    assert chart is not None
    for line in chart.lines:
        assert all(0 <= float(place.rstrip("%")) <= 100 for place in (line.x1, line.x2, line.y1, line.y2))
    steps = [
        line
        for line in chart.lines
        if line.style.startswith("colour-0") and line.y1 == line.y2 and line.x1 != line.x2
    ]
    assert (steps[0].x1, steps[-1].x2) == ("0.000%", "100.000%")
    assert [step.x2 for step in steps[:-1]] == [step.x1 for step in steps[1:]]
    assert ["upcoming" in step.style for step in steps] == [False, True, True, True]


@pytest.mark.parametrize(
    ("days", "anchor"), [((0, 30), "start"), ((1, 30), "start"), ((-30, 0), "end"), ((-30, 10), "end")]
)
def test_now_is_written_on_the_side_of_the_chart_with_more_room(days: tuple[int, int], anchor: str) -> None:
    now = timezone.now()
    rows = [Price(model="small", effective_from=now + timedelta(day), **FREE.columns()) for day in days]
    chart = draw_chart(rows, now)
    assert chart is not None
    assert chart.now.anchor == anchor


def test_a_price_may_begin_on_the_last_day_that_there_is(root: Client, history: None) -> None:
    prices.change("small", PriceValue(1, 1, 1), datetime(9999, 12, 31, 23, tzinfo=UTC))
    assert "9999-12-31" in text(root.get(PAGE))


def test_a_price_that_never_changed_has_no_chart(root: Client, small: ServedModel) -> None:
    page = root.get(PAGE).content.decode()
    assert "chart-title" not in page
    assert "in effect" in page


def test_a_model_without_a_price_has_a_hint_how_to_set_one(root: Client) -> None:
    ServedModel.objects.create(id="org/un priced".replace(" ", "-"))
    page = root.get("/admin/prices/", {"model": "org/un-priced"})
    assert "so its requests are refused. Set a price ; 0 is free." in text(page)
    assert 'href="/admin/usage/price/add/?model=org/un-priced"' in page.content.decode()


def test_prices_outlive_their_model(root: Client, history: None) -> None:
    ServedModel.objects.all().delete()
    shown = text(root.get(PAGE))
    assert "not in the catalog" in shown
    assert "Input $0.30 → to $0.15 −50 %" in shown
    assert "New price" not in shown


def test_a_long_history_is_cut_and_still_compared(small: ServedModel, root: Client) -> None:
    now = timezone.now()
    starts = [now - timedelta(days=day) for day in range(1, MAX_PRICES + 2)]
    Price.objects.bulk_create(
        Price(model="small", effective_from=start, **dict.fromkeys(_NAMES, 10**6 * (number + 1)))
        for number, start in enumerate(starts)
    )
    page = root.get(PAGE).content.decode()
    assert page.count('<dl class="amounts">') == MAX_PRICES
    assert "2 older prices" in page
    assert page.count('<span class="change') == 3 * MAX_PRICES


_NAMES = ("input_per_mtok_nanodollars", "cached_input_per_mtok_nanodollars", "output_per_mtok_nanodollars")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (0, 0, "unchanged"), (5, 5, "unchanged"), (0, 5, "was free"), (5, 0, "free now"),
        (100, 133, "+33 %"), (1000, 975, "−2.5 %"), (1, 10, "+900 %"), (1, 12, "+1,100 %"),
        (3, 10**9, "+33,333,333,233 %"),
        (10**15, 10**15 + 1, "barely changed"),
    ],
)  # fmt: skip
def test_a_change_is_shown_in_percent_or_in_words(before: int, after: int, says: str) -> None:
    assert percent(before, after) == says


def test_prices_of_one_moment_on_are_in_effect_from_it(small: ServedModel) -> None:
    row = Price.objects.get()
    assert [entry.state for entry in entries([row], row.effective_from)] == ["in effect"]
    assert [entry.state for entry in entries([row], row.effective_from - timedelta(microseconds=1))] == [
        "upcoming"
    ]


def test_the_list_tells_the_change_and_leads_to_the_timeline(root: Client, history: None) -> None:
    page = root.get("/admin/usage/price/")
    assert "$0.15 (−50 %)" in text(page)
    assert "$0.90 (+50 %)" in text(page)
    assert 'href="/admin/prices/?model=small"' in page.content.decode()
    row = Price.objects.latest("effective_from")
    assert root.get(f"/admin/usage/price/{row.pk}/show_timeline/").headers["location"] == PAGE


def test_prices_of_cache_writes_are_typed_and_shown(root: Client, small: ServedModel) -> None:
    form = {
        "model": "small",
        "effective_from_0": "2027-01-01",
        "effective_from_1": "00:00:00",
        **dict.fromkeys(_NAMES, "1"),
        "cache_write_per_mtok_nanodollars": "1.25",
    }
    assert root.post("/admin/usage/price/add/", form).status_code == 302
    row = Price.objects.latest("effective_from")
    assert (row.cache_write_per_mtok_nanodollars, row.cache_write_1h_per_mtok_nanodollars) == (
        1_250_000_000,
        None,
    )
    detail = text(root.get(f"/admin/usage/price/{row.pk}/change/"))
    assert "$1.25 (+733 %)" in detail.replace("\N{NO-BREAK SPACE}", " ")
    assert "as cache write" in detail
    assert "Cache write as input → to $1.25" in text(root.get(PAGE))


def test_a_new_price_begins_with_what_the_model_costs_now(root: Client, small: ServedModel) -> None:
    form = root.get("/admin/usage/price/add/?model=small").content.decode()
    assert re.search(r'name="output_per_mtok_nanodollars" value="0.6"', form)
    assert '<option value="small" selected>' in form


def test_two_prices_from_one_moment_on_are_refused_in_words(root: Client, small: ServedModel) -> None:
    form = {
        "model": "small",
        "effective_from_0": "2027-01-01",
        "effective_from_1": "00:00:00",
        **dict.fromkeys(_NAMES, "1"),
    }
    assert root.post("/admin/usage/price/add/", form).status_code == 302
    assert "already exists" in text(root.post("/admin/usage/price/add/", form))
    assert Price.objects.count() == 2


def test_a_price_from_the_last_day_of_the_calendar_on_is_refused(root: Client, small: ServedModel) -> None:
    """Pages of organizations east of Greenwich would have no date for it."""
    form = {
        "model": "small",
        "effective_from_0": "9999-12-31",
        "effective_from_1": "23:59:00",
        **dict.fromkeys(_NAMES, "1"),
    }
    assert "Choose a year from 1000 to 8999." in text(root.post("/admin/usage/price/add/", form))
    assert Price.objects.count() == 1


def test_a_price_that_changes_nothing_is_refused_as_from_the_catalog(
    root: Client, small: ServedModel
) -> None:
    price = Price.objects.get()
    form = {name: to_usd(getattr(price, name)) for name in _NAMES}
    form |= {"model": "small", "effective_from_0": "2027-01-01", "effective_from_1": "00:00:00"}
    assert "has this price at that time already" in text(root.post("/admin/usage/price/add/", form))
    assert Price.objects.count() == 1


def test_the_same_price_that_another_person_saved_meanwhile_is_not_saved_again(
    rf: RequestFactory, small: ServedModel
) -> None:
    same = Price(model="small", effective_from=timezone.now(), **Price.objects.get().value.columns())
    with pytest.raises(BadRequest, match="conflicts with a change"):
        site.get_model_admin(Price).save_model(rf.post("/"), same, form=None, change=False)
    assert Price.objects.count() == 1


def test_the_slower_of_two_people_who_save_a_price_for_one_moment_is_told_so(
    root: Client, small: ServedModel
) -> None:
    form = {"model": "small", "effective_from_0": "2027-01-01", "effective_from_1": "00:00:00"}

    def be_faster(instance: Price, **kwargs: object) -> None:
        Price.objects.bulk_create(
            [Price(model="small", effective_from=instance.effective_from, **FREE.columns())]
        )

    pre_save.connect(be_faster, sender=Price)
    try:
        answer = root.post("/admin/usage/price/add/", form | dict.fromkeys(_NAMES, "1"))
    finally:
        pre_save.disconnect(be_faster, sender=Price)
    assert answer.status_code == 400
    shown = answer.content.decode()
    assert "This conflicts with a change that was saved just now, so it was not saved." in shown
    assert not Price.objects.filter(output_per_mtok_nanodollars=10**9).exists()


def test_the_timeline_needs_the_permission_and_a_model(root: Client, small: ServedModel) -> None:
    clerk, client = User.objects.create_user("clerk", is_staff=True), Client()
    client.force_login(clerk)
    assert client.get(PAGE).status_code == 403
    clerk.user_permissions.add(Permission.objects.get(codename="view_price"))
    assert client.get(PAGE).status_code == 200
    assert "New price" not in text(client.get(PAGE))
    assert root.get("/admin/prices/").headers["location"] == "/admin/usage/price/"
    assert root.get("/admin/prices/", {"model": "\x00<b>"}).status_code == 200
    assert Client().get(PAGE).status_code == 302


def test_a_price_that_has_not_begun_can_be_withdrawn(root: Client, history: None) -> None:
    upcoming, _ = Price.objects.filter(model="small", effective_from__gt=timezone.now()).order_by(
        "effective_from"
    )
    page = root.post(f"/admin/prices/{upcoming.pk}/withdraw", follow=True)
    assert "is withdrawn." in page.content.decode()
    assert not Price.objects.filter(pk=upcoming.pk).exists()
    assert AuditEntry.objects.filter(action="deleted", object_type="usage.price").count() == 1
    for row in Price.objects.filter(model="small", effective_from__lte=timezone.now()):
        page = root.post(f"/admin/prices/{row.pk}/withdraw", follow=True)
        assert "This price has begun" in page.content.decode()
        assert Price.objects.filter(pk=row.pk).exists()
    assert root.post(f"/admin/prices/{upcoming.pk}/withdraw").status_code == 404


def test_an_empty_price_of_cached_input_is_no_silent_rise(root: Client, small: ServedModel) -> None:
    sent = {"model": "small", "effective_from_0": "2099-01-01", "effective_from_1": "00:00:00"}
    sent |= {"input_per_mtok_nanodollars": "0.2", "output_per_mtok_nanodollars": "0.6"}
    page = root.post("/admin/usage/price/add/", sent)
    assert "It is $0.075 now." in page.content.decode()
    assert (
        root.post("/admin/usage/price/add/", sent | {"cached_input_per_mtok_nanodollars": "0.2"}).status_code
        == 302
    )
