"""Prepaid credit, budget limits, and the amounts that each budget has spent and holds."""

from datetime import date
from typing import Any, NamedTuple, Self

from django.db import models
from django.db.models import Q

from accounts.models import APIKey, EndUser, Organization, Project
from usage.models.budget_keys import EVER, ROW_PERIODS, BudgetKey, LimitKey, Period, Scope

# An organization's budget whose spending its credit pays: the columns beside the organization's id.
CREDIT_BUDGET = {
    name: value
    for name, value in BudgetKey.at(Scope.ORGANIZATION, 0, Period.EVER, EVER)._asdict().items()
    if name not in ("scope_id", "period_start")
}
# The balance at which credit `c` is low, in SQL: the chosen one, or a tenth of the last grant. NULL for 0: it
# is never low, not even below zero.
LOW_CREDIT = "NULLIF(COALESCE(c.low_credit_nanodollars, c.last_grant_nanodollars / 10), 0)"


class Credit(models.Model):
    """An organization's prepaid amount: its grants less its refunds. Its budget "ever" has its spending."""

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, related_name="+", primary_key=True
    )
    is_required = models.BooleanField(
        default=False, help_text="Requests that the balance can't cover are refused."
    )
    credited_nanodollars = models.BigIntegerField(default=0)
    last_grant_nanodollars = models.BigIntegerField(db_default=0, editable=False)
    low_credit_nanodollars = models.BigIntegerField(
        null=True, blank=True, help_text="The balance below which an event says that credit is low."
    )

    class Meta:
        verbose_name_plural = "credit"
        constraints = [
            models.CheckConstraint(condition=Q(credited_nanodollars__gte=0), name="credit_not_negative"),
            models.CheckConstraint(
                condition=Q(low_credit_nanodollars__gte=0), name="low_credit_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return str(self.organization)

    @property
    def budget_id(self) -> str:
        """Return the id of the budget that has the organization's spending."""
        return str(BudgetKey.at(Scope.ORGANIZATION, self.organization_id, Period.EVER, EVER))


class _Keyed(models.Model):
    """The columns that a limit and its budgets have in common, and the way to the rows of a key."""

    scope = models.CharField(max_length=12, choices=Scope.choices)
    scope_id = models.BigIntegerField()
    period = models.CharField(max_length=5, choices=Period.choices)

    class Meta:
        abstract = True

    @classmethod
    def rows(cls, key: LimitKey | BudgetKey) -> "models.QuerySet[Self]":
        """Return the rows with this key; a limit's key selects the budgets of all its periods."""
        return cls._default_manager.filter(**key._asdict())

    @classmethod
    def new(cls, key: LimitKey | BudgetKey, **columns: Any) -> Self:
        """Return a row with this key that is not saved yet."""
        return cls(**key._asdict(), **columns)


class BudgetLimit(_Keyed):
    """The most that an organization, project, key or end user may spend in each day, week or month, or ever.

    For an end user, its own limit of a period comes before that of its project for each end user, and this
    before the organization's. A soft limit refuses nothing: the budget that reaches it records when.
    """

    limit_nanodollars = models.BigIntegerField(null=True, blank=True)
    soft_limit_nanodollars = models.BigIntegerField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=LimitKey._fields, name="one_limit_per_scope_and_period"),
            models.CheckConstraint(condition=Q(limit_nanodollars__gte=0), name="limit_not_negative"),
            models.CheckConstraint(
                condition=Q(soft_limit_nanodollars__gte=0), name="soft_limit_not_negative"
            ),
        ]
        # Settlements ask whether there is one.
        indexes = [models.Index(fields=["id"], condition=Q(period=Period.WEEK), name="limits_of_weeks")]

    def __str__(self) -> str:
        return f"{self.owner_name}, {self.period}"

    def save_or_delete(self) -> None:
        """Validate and save the limit; without an amount it limits nothing, and its row is deleted, if any.

        Raises `ValidationError`.
        """
        if self.limit_nanodollars is not None or self.soft_limit_nanodollars is not None:
            self.full_clean()
            self.save()
        elif self.pk is not None:
            self.delete()

    @property
    def key(self) -> LimitKey:
        return LimitKey.of(self)

    @property
    def is_of_organization(self) -> bool:
        """Return whether it limits an organization, whose people can't change that."""
        return self.scope in (Scope.ORGANIZATION, Scope.ORGANIZATION_END_USERS)

    @property
    def owner_name(self) -> str:
        """Return the owner's current name, with a query unless the row is annotated with `subject_name`."""
        if (known := getattr(self, "subject_name", None)) is not None:
            return str(known)
        owner = owner_of(self.scope, self.scope_id)
        return owner.name if owner else f"{self.scope} {self.scope_id}"


# Each scope's model, and the lookups of its full name, of which the first is the organization's name.
OWNERS: dict[Scope, tuple[type[models.Model], tuple[str, ...]]] = {
    Scope.ORGANIZATION: (Organization, ("name",)),
    Scope.PROJECT: (Project, ("organization__name", "name")),
    Scope.API_KEY: (APIKey, ("project__organization__name", "project__name", "name")),
    Scope.END_USER: (EndUser, ("project__organization__name", "project__name", "name")),
    Scope.PROJECT_END_USERS: (Project, ("organization__name", "name")),
    Scope.ORGANIZATION_END_USERS: (Organization, ("name",)),
}


class Owner(NamedTuple):
    """The owner of a budget or a limit: its organization, and its name below it."""

    organization_id: int
    name: str


def owner_of(scope: str, scope_id: int) -> Owner | None:
    """Read the owner of a budget or a limit; None if there is none any more."""
    model, path = OWNERS[Scope(scope)]
    organization = f"{path[0].removesuffix('name')}pk"
    row = model._default_manager.filter(pk=scope_id).values_list(organization, *path).first()
    return None if row is None else Owner(row[0], " / ".join(row[1:]))


class Budget(_Keyed):
    """The amounts that one organization, project, key or end user has spent (`posted`) and holds (`pending`)
    in one period.

    The period is part of the id, `key/7/month/2026-11-01`: a new period is a new row, and nothing is reset.
    """

    # Text, so that an admission knows the ids of its budgets without reading any row.
    id = models.CharField(primary_key=True, max_length=255)
    # A week has no row: it is the sum of those of its days.
    period = models.CharField(max_length=5, choices=[(each.value, each.label) for each in ROW_PERIODS])
    period_start = models.DateField()
    posted_nanodollars = models.BigIntegerField(default=0)
    pending_nanodollars = models.BigIntegerField(default=0)
    soft_limit_reached_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=BudgetKey._fields, name="one_budget_per_scope_and_period"),
            models.CheckConstraint(condition=Q(pending_nanodollars__gte=0), name="pending_not_negative"),
        ]
        # The order of their list without end users, of whom there may be very many, and of one scope. The
        # second is whole: beside a partial one, SQLite would rather sort all budgets of end users.
        indexes = [
            models.Index(
                fields=["-period_start", "scope", "scope_id"],
                condition=~Q(scope="end_user"),
                name="budgets_by_period",
            ),
            models.Index(fields=["scope", "-period_start", "scope_id"], name="budgets_of_a_scope_by_period"),
        ]

    def __str__(self) -> str:
        return self.id

    @classmethod
    def of_owners(cls, scope: Scope, period: Period, day: date) -> "models.QuerySet[Budget]":
        """Return the budgets that all owners of this kind have on that day."""
        key = BudgetKey.at(scope, 0, period, day)._asdict()
        del key["scope_id"]
        return cls.objects.filter(**key)

    @classmethod
    def of_credit(cls) -> "models.QuerySet[Budget]":
        """Return the budgets whose spending the credit of their organization pays."""
        return cls.of_owners(Scope.ORGANIZATION, Period.EVER, EVER)

    @property
    def key(self) -> BudgetKey:
        """Return the key of its columns; its text must be the id."""
        return BudgetKey.of(self)
