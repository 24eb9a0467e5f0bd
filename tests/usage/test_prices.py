"""Which price is in effect for which organization."""

from datetime import datetime, timedelta

from accounts.models import APIKey, Organization
from usage.books import prices
from usage.database.clock import database_now
from usage.models import Discount
from usage.pricing import FREE, Price

CHEAP, DEAR = Price(1, 1, 1), Price(100, 50, 200, 400)


def discount(organization: Organization, basis_points: int, effective_from: datetime) -> None:
    Discount.objects.create(
        organization=organization, basis_points=basis_points, effective_from=effective_from
    )


def test_the_latest_price_that_has_begun_counts(db: None) -> None:
    now = database_now()
    for hours, price in ((-2, FREE), (-1, DEAR), (1, CHEAP)):
        assert prices.change("m", price, now + timedelta(hours=hours))
    assert prices.current() == prices.current(now) == {"m": DEAR}
    assert prices.current(now + timedelta(hours=1)) == {"m": CHEAP}


def test_the_same_price_again_is_no_change(db: None) -> None:
    assert prices.change("m", DEAR)
    assert not prices.change("m", DEAR)
    assert prices.change("m", CHEAP)


def test_the_latest_discount_that_has_begun_counts(key: APIKey) -> None:
    organization, now = key.project.organization, database_now()
    for hours, points in ((-2, 500), (-1, 1_500), (1, 2_000)):
        discount(organization, points, now + timedelta(hours=hours))
    assert prices.current_discounts() == {organization.pk: 1_500}
    discount(organization, 0, now)
    assert prices.current_discounts() == {organization.pk: 0}


def test_history_knows_what_anybody_paid_when(key: APIKey) -> None:
    organization, now = key.project.organization, database_now()
    prices.change("m", DEAR, now - timedelta(hours=2))
    discount(organization, 2_500, now - timedelta(hours=1))
    history = prices.History()
    assert history.at("m", now - timedelta(hours=3), organization.pk) is None
    assert history.at("m", now - timedelta(hours=2), organization.pk) == DEAR
    assert history.at("m", now, organization.pk) == Price(75, 38, 150, 300)
    assert history.at("m", now, organization.pk + 1) == DEAR
