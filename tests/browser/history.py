"""What the house of the tasks had before: months of usage by two organizations."""

from tests.browser.conftest import PASSPHRASE

# Requests of yesterday, of nine days ago and of the last month, a limit that is nearly spent, and a colleague
# without an invitation.
HISTORY = """
import json, random
from uuid import UUID
from datetime import timedelta
from django.contrib.auth.models import User
from accounts.keys import create_key
from accounts.models import Member, Organization
from chatapi import identity
from tests.usage.billing_months import FIRST_PRICE, close_all, keys_of, use
from usage.books import prices
from usage.database.clock import database_now
from usage.formatting import amount, usd
from usage.models import BudgetLimit, LedgerEntry, Statement
chance, now = random.Random(1), database_now()
def spend(key, moment, completion):
    # Ids are UUIDv7, which begin with their time.
    begun = int(moment.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62
    identity.new_id = lambda: UUID(int=begun | chance.getrandbits(62))
    use(chance, key, moment, completion=completion)
keys = keys_of("History Co")
Organization.objects.update(created_at=now - timedelta(days=90))
for model in ("small", "large"):
    prices.change(model, FIRST_PRICE, now - timedelta(days=90))
yesterday = now.replace(hour=0, minute=30, second=0, microsecond=0) - timedelta(hours=12)
for number in range(6):
    spend(keys[number % 2], yesterday + timedelta(minutes=number), 100 * number + 1)
last_month = now.replace(day=1) - timedelta(days=5)
for number in range(4):
    spend(keys[0], last_month + timedelta(hours=number), 200)
spend(keys[0], now - timedelta(seconds=1), 300)
spend(keys[1], now - timedelta(days=9), 100)
frugal, _ = create_key(keys[0].project, name="frugal")
keys[0].name = "greedy"
keys[0].save()
others = keys_of("Another Co")
spend(frugal, last_month, 10)
spend(others[0], last_month, 999)
close_all()
owner = {"scope": "project", "scope_id": keys[0].project_id}
BudgetLimit.objects.create(**owner, period="ever", limit_nanodollars=10**7)
for name, role in (("ada", "owner"), ("dev", "member")):
    user = User.objects.create_user(name, password="PASSPHRASE")
    Member.objects.create(organization=keys[0].project.organization, user=user, role=role)
def spent_in_ledger(key):
    entries = LedgerEntry.objects.filter(api_key=key)
    return amount(sum(entries.values_list("amount_nanodollars", flat=True)))
month = last_month.date().replace(day=1)
statement = Statement.objects.get(organization=keys[0].project.organization, month=month)
print(json.dumps({
    "organization": keys[0].project.organization_id,
    "spent": {"greedy": spent_in_ledger(keys[0]), "frugal": spent_in_ledger(frugal)},
    "month": f"{month:%B %Y}",
    "balance": usd(statement.closing_balance_nanodollars),
}))
""".replace("PASSPHRASE", PASSPHRASE)
