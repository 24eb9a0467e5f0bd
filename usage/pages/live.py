"""The Live page of open generations: its table, and the JSON of the feed that keeps it up to date."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

from django import forms
from django.contrib.auth.decorators import permission_required
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts import access, end_users
from accounts.models import APIKey, Project
from accounts.pages.admin_site import admin_page
from accounts.sign_in.sessions import SignIn, permitted
from usage import insights
from usage.formatting import count, money
from usage.insights import RunningGeneration
from usage.pages.filters import NO_HELP, is_id

PERMISSION = "usage.view_generation"
# The most rows of the feed: the oldest ones.
MAX_ROWS = 1_000
# The most rows of the page's HTML; the feed adds the others.
PAGE_ROWS = 50


@dataclass(frozen=True, slots=True)
class LiveRow:
    """A row of the table: one open generation."""

    id: str
    began_ms: int
    """The Unix time of the creation, from which the browser computes the age."""
    who: str
    project_id: int
    project: str
    key_id: int
    key: str
    model: str
    end_user: str
    state: str
    tokens: int
    rate: str
    held: str
    cost_nanodollars: int

    @classmethod
    def of(cls, running: RunningGeneration) -> "LiveRow":
        return cls(
            id=running.public_id,
            began_ms=running.id.int >> 80,  # a UUIDv7 begins with its creation time
            who=f"{running.organization} / {running.project}",
            project_id=running.project_id,
            project=running.project,
            key_id=running.api_key_id,
            key=running.key,
            model=running.model,
            end_user=running.end_user,
            state="waiting" if running.is_queued else "running",
            tokens=running.completion_tokens,
            rate="–" if running.is_queued else f"{running.tokens_per_second:.1f}",
            held=money(running.reserved_nanodollars),
            cost_nanodollars=running.cost_nanodollars,
        )


# Each row and its JSON, which leaves out empty texts, by id, the oldest first.
Snapshot = Mapping[str, tuple[LiveRow, str]]


@dataclass(frozen=True, slots=True)
class Sight:
    """What one person sees: all of the organizations (None: of all that there are), and in the console only
    other organizations and single projects.
    """

    organizations: tuple[int, ...] | None = None
    projects: frozenset[tuple[int, int]] = frozenset()
    """Each project as the ids of its organization and of itself."""
    by_own_role: frozenset[int] = frozenset()
    """The organizations that the person sees in the console only."""

    def of_organization(self, organization_id: int) -> "Sight":
        """Return the part that belongs to this organization."""
        whole = self.organizations
        if whole is None or organization_id in whole or organization_id in self.by_own_role:
            return Sight((organization_id,))
        return Sight((), frozenset(each for each in self.projects if each[0] == organization_id))


def snapshot(before: Snapshot, sight: Sight = Sight()) -> Snapshot:
    """Return the open generations that the sight has.

    A row that looks as it did in `before` is the same object, which `difference` does not send.
    """
    found = {}
    projects = {project_id for _, project_id in sight.projects}
    for row in map(LiveRow.of, running_of(sight.organizations, projects=projects)):
        known = before.get(row.id)
        # A rate alone is not worth sending: it falls between two heartbeats.
        if known is not None and known[0] == replace(row, rate=known[0].rate):
            found[row.id] = known
        else:
            # Most requests name no end user.
            shown = {name: value for name, value in asdict(row).items() if value != ""}
            found[row.id] = row, json.dumps(shown, separators=(",", ":"))
    return found


def difference(before: Snapshot, now: Snapshot, now_ms: int) -> str:
    """Return, as JSON, the rows that are new or changed since `before`, and the ids that are gone."""
    rows = ",".join(
        text for row_id, (row, text) in now.items() if row_id not in before or before[row_id][0] is not row
    )
    gone = json.dumps([row_id for row_id in before if row_id not in now])
    return f'{{"now_ms":{now_ms},"rows":[{rows}],"gone":{gone}}}'


# ---- the page


class LiveFilterForm(forms.Form):
    """The GET form of a Live page. It offers the values of the running requests, and the chosen ones. The end
    user is a text, because there may be as many as running requests.
    """

    project = forms.ChoiceField(required=False)
    key = forms.ChoiceField(required=False)
    model = forms.ChoiceField(required=False)
    # Not a CharField, which refuses some texts: no value is a mistake.
    end_user = forms.Field(required=False, label="End user", widget=forms.TextInput(NO_HELP))

    def __init__(
        self,
        query: Mapping[str, str],
        running: Sequence[RunningGeneration],
        project_name: Callable[[RunningGeneration], str] = lambda each: each.project,
        known: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Read the query. `project_name` names the project of a running request. `known` has the names of the
        chosen project and key, if the page knows them.
        """
        super().__init__(query, auto_id=False)
        self.running = running
        options: dict[str, dict[str, str]] = {"project": {}, "key": {}, "model": {}}
        for each in running:
            options["project"][str(each.project_id)] = project_name(each)
            options["key"][str(each.api_key_id)] = each.key
            options["model"][each.model] = each.model
        for name, own in options.items():
            # A link may be of a key whose requests have ended, so no value is a mistake.
            if chosen := query.get(name):
                own.setdefault(chosen, chosen if name == "model" else known.get(name, f"number {chosen}"))
            field: Any = self.fields[name]
            field.choices = [("", "any"), *sorted(own.items(), key=lambda option: option[1])]
        self.full_clean()

    def clean_end_user(self) -> str:
        """Return the text without outer spaces, as the form of Requests does."""
        return str(self.cleaned_data["end_user"] or "").strip()

    @property
    def end_user_names(self) -> tuple[str, ...]:
        """Return the names that rows of the chosen end user may have; none if none is chosen."""
        chosen = self.cleaned_data["end_user"]
        return end_users.stored_names(chosen) if chosen else ()

    @property
    def matching(self) -> list[RunningGeneration]:
        """Return the running requests that match."""
        project, key, model = (self.cleaned_data[name] for name in ("project", "key", "model"))
        names = self.end_user_names
        return [
            each
            for each in self.running
            if project in ("", str(each.project_id))
            and key in ("", str(each.api_key_id))
            and model in ("", each.model)
            and (not names or each.end_user in names)
        ]


def table(form: LiveFilterForm) -> dict[str, Any]:
    """Return what the templates show: the form, the sums, and the rows, each with its age."""
    shown = form.matching
    return {
        "form": form,
        "chosen": form.cleaned_data,
        # As JSON for the script, which can't make a digest.
        "end_user_names": json.dumps(form.end_user_names),
        "count": len(shown),
        "tokens": count(sum(each.completion_tokens for each in shown)),
        "cost": money(sum(each.cost_nanodollars for each in shown)),
        # More may be running than was read.
        "is_cut": len(form.running) >= MAX_ROWS,
        "max_rows": MAX_ROWS,
        "rows": [(LiveRow.of(each), age(each.age_s)) for each in shown[:PAGE_ROWS]],
    }


def age(seconds: float) -> str:
    """Return the age of a running request as live.js has it: "119 s", then "2 min", then "2 h"."""
    minutes = round(seconds) // 60
    if minutes < 2:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


# What each sign-in sees of the running requests.
Seen = Mapping[SignIn, Sight]


def sights_of(sign_ins: Collection[SignIn]) -> Seen:
    """Return the sign-ins whose person may see the page now, with what the person sees."""
    people = permitted(PERMISSION, sign_ins)
    limited = [
        person.pk
        for person in people.values()
        if not access.is_operator(person) and access.limited_roles_of(person)
    ]
    projects = access.limited_projects_of(limited) if limited else {}
    return {
        each: Sight(
            access.organizations_of(person),
            projects.get(person.pk, frozenset()),
            access.organizations_by_own_role(person, PERMISSION),
        )
        for each, person in people.items()
    }


def running_of(
    organizations: Collection[int] | None,
    api_key_id: int | None = None,
    *,
    projects: Collection[int] = (),
    end_user: tuple[int, str] | None = None,
) -> list[RunningGeneration]:
    """Return the oldest running requests, the oldest first, of all or of these organizations and projects; of
    this key only, or of this project and name of an end user, if one is given.
    """
    return insights.running(MAX_ROWS, organizations, api_key_id, projects, end_user)


@require_safe
@never_cache
@permission_required(PERMISSION, raise_exception=True)
def page(request: HttpRequest) -> HttpResponse:
    """Show the table. A script keeps it up to date; without a script the page reloads itself."""
    running = running_of(access.organizations_of(request.user))
    form = LiveFilterForm(
        request.GET, running, lambda each: f"{each.organization} / {each.project}", _names(request)
    )
    context = {
        "title": "Live",
        **table(form),
        "feed": reverse("admin:live_feed"),
        "may_stop": request.user.has_perm("usage.change_generation"),
    }
    return admin_page(request, "usage/live.html", context)


def _names(request: HttpRequest) -> dict[str, str]:
    """Return the names of the chosen project and key, also if none of their requests runs."""
    names: dict[str, str] = {}
    for name, model in {"project": Project, "key": APIKey}.items():
        if is_id(chosen := request.GET.get(name, "")):
            rows: QuerySet[Any] = access.seen_by(request.user, model._default_manager.all())
            if row := rows.filter(pk=int(chosen)).first():
                names[name] = str(row)
    return names
