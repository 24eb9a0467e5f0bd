"""Rows of every kind in the database of an installation, and the paths of all pages about them; its functions
run inside the installation.
"""

import random
from datetime import timedelta

from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.contrib.auth.models import User

from accounts.models import APIKey, Member, Organization, Project, Role
from chatapi.models import Deployment, ServedModel
from chatapi.notifications import queue, webhooks
from chatapi.notifications.models import Delivery, WebhookEndpoint
from chatapi.notifications.queue import Attempt
from tests import page_paths
from tests.cast import PRICE, join, run
from tests.chatapi import test_access_matrix, test_console_access
from tests.usage import billing_months
from usage.books import credit, prices
from usage.database.clock import database_now
from usage.models import BudgetLimit, Outcome
from usage.notifications import watch
from usage.statements.month import Month

# What looks different from a page's first view.
ADMIN_VIEWS = {
    "index": ("group=error", "group=metadata"),
    "live": ("key={key}",),
    "requests": ("sort=cost",),
    "prices": ("model=small",),
}
CONSOLE_VIEWS = {
    "overview": ("group=key", "start=2020-01-01&end=2020-01-02"),
    "usage": ("group=error", "group=end_user", "start=2020-01-01&end=2020-01-02"),
    "live": ("key={key}",),
    "new_budget": ("key={key}",),
    "requests": ("sort=cost", "outcome=failed"),
    "model": ("project={idle}",),
    "notifications": ("kind=key.expiring",),
}


def furnish(owner: str, password: str) -> dict[str, dict[str, str]]:
    """Make two organizations, and an operator who owns the second; return the paths of the pages of the admin
    about the first, of the console about the second, and of the documentation.
    """
    model = ServedModel.objects.create(id="small", owned_by="acme")
    Deployment.objects.create(model=model, name="sandbox", engine="sandbox")
    prices.change(model.id, PRICE)
    acme, globex = (Organization.objects.create(name=name) for name in ("Acme", "Globex"))
    user = User.objects.create_superuser(owner, email=f"{owner}@example.com", password=password)
    Member.objects.create(organization=globex, user=user, role=Role.OWNER)
    alice, bob = join("alice", Role.OWNER, acme, "default"), join("bob", Role.MEMBER, acme, "research")
    olga = join("olga", Role.OWNER, globex, "default")
    charlie = join("charlie", Role.OWNER, Organization.objects.create(name="Umbrella"), "default")
    admin = page_paths.of_admin(test_access_matrix.House(acme, alice, bob, model))
    console = page_paths.of_console(test_console_access.House(globex, olga, charlie))
    month = _close_a_month(alice.api_key, olga.api_key)
    admin |= page_paths.views(admin, ADMIN_VIEWS, key=alice.api_key.pk)
    for outcome in (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.FAILED):
        run(olga, outcome=outcome)
    idle = Project.objects.create(organization=globex, name="idle")
    console |= page_paths.views(console, CONSOLE_VIEWS, key=olga.api_key.pk, idle=idle.pk)
    admin["a closed statement"] = f"/admin/statements/{acme.pk}/{month}"
    console["a busy webhook"] = f"/console/{globex.pk}/webhooks/{_notify(olga.api_key).pk}"
    console["a closed statement"] = f"/console/{globex.pk}/statements/{month}"
    return {"admin": admin, "console": console, "documentation": page_paths.of_documentation()}


def _close_a_month(*keys: APIKey) -> Month:
    """Return a month that is over, with usage of these keys and issued statements."""
    month = Month.of(database_now()).previous
    for name in ("small", "large"):
        prices.change(name, billing_months.FIRST_PRICE, month.start - timedelta(days=1))
    for key in keys:
        billing_months.use(random.Random(1), key, month.start + timedelta(days=3), completion=100)
    billing_months.close_all()
    return month


def _notify(key: APIKey) -> WebhookEndpoint:
    """Set a limit that is reached, which is an event, and return a webhook with a log of deliveries."""
    project = key.project
    BudgetLimit.objects.create(
        scope="project", scope_id=project.pk, period="ever", limit_nanodollars=10**9, soft_limit_nanodollars=1
    )
    credit.grant(project.organization, 10**10, credit.Note("a test", "olga"))
    now = database_now()
    watch.write(now, [watch.look(now, find) for find in watch.LOOKS])
    url = "https://hooks.example.com/" + "a-long-path/" * 20
    hook = WebhookEndpoint(organization=project.organization, url=url)
    webhooks.add(hook)
    for result in (Attempt(120, 503, "<html>" + "busy" * 100, "status 503"), Attempt(9, 204)):
        Delivery.objects.filter(state="due").update(state="failed")
        queue.send_test(database_now(), hook)
        queue.record(now, queue.take(database_now(), 1)[0], result)
    return hook


def add_second_factors(owner: str) -> None:
    """Give the person an app of codes, and recovery codes."""
    user = User.objects.get(username=owner)
    TOTP.activate(user, generate_totp_secret())
    RecoveryCodes.activate(user)


def remove_second_factors(owner: str) -> None:
    """Take them from the person again."""
    Authenticator.objects.filter(user__username=owner).delete()
