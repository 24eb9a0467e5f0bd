"""Members: their list, inviting people, changing their roles, removing them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from accounts import acceptance, access, invitations, invitees, memberships, own_roles, roles
from accounts.models import Group, Member, OwnRole, Project, Role
from accounts.sign_in import email_addresses
from accounts.sign_in.form_limits import TooManyAttempts
from chatapi.console.password_pages import mail_reset
from chatapi.console.search import MemberSearch
from chatapi.console.tenancy import Console, page, project_name, render
from usage.pages.filters import first_mistake, is_id

# So that the page stays below 150 kB.
PAGE = 50
_MAX_CHECKBOXES = 100
_ALL, _ONLY = "all", "only"
_NO_PROJECT = "Choose at least one project."
_KEYS_STILL_WORK = " API keys that they made or know still work: revoke or rotate those."


@dataclass(frozen=True, slots=True)
class GivableRole:
    """A role that the person can give and take, as forms send and show it."""

    role: Role | OwnRole
    name: str
    text: str
    """Its name and what it permits."""

    @property
    def value(self) -> str:
        return value_of(self.role)


def value_of(role: str | OwnRole) -> str:
    """Return a role as forms send it."""
    return f"own-{role.pk}" if isinstance(role, OwnRole) else str(role)


def _givable(console: Console) -> list[GivableRole]:
    """Return the roles that are not above the person's own: those of all organizations, then its own."""
    own = access.role_in(console.person, console.organization.pk)
    if own is None:
        return []
    found = [
        GivableRole(role, role.value, f"{role.label}: {roles.MEANINGS[role]}") for role in roles.givable(own)
    ]
    return found + [
        GivableRole(row, row.name, f"{row.name}: {row.description or own_roles.words(row.permissions)}")
        for row in own_roles_of(console)
        if not roles.is_above(access.rank_of(row), own)
    ]


def own_roles_of(console: Console) -> QuerySet[OwnRole]:
    return OwnRole.objects.filter(organization=console.organization)


def offer(field: Any, choices: Sequence[tuple[str, str]]) -> None:
    """Make the field's choices a list of checkboxes or, of very many, one in which several can be chosen."""
    field.choices = choices
    is_short = len(choices) <= _MAX_CHECKBOXES
    field.widget = (
        forms.CheckboxSelectMultiple(choices=choices)
        if is_short
        else forms.SelectMultiple({"size": 12}, choices=choices)
    )


class PlaceForm(forms.Form):
    """A member's role, and the projects that they see."""

    role = forms.ChoiceField(widget=forms.RadioSelect)
    sees = forms.ChoiceField(
        label="Projects",
        choices=[(_ALL, "All projects"), (_ONLY, "Only these, as a viewer or a member")],
        widget=forms.RadioSelect,
    )
    projects = forms.MultipleChoiceField(label="These projects", required=False)
    groups = forms.MultipleChoiceField(required=False, widget=forms.CheckboxSelectMultiple)
    opened_with = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any, console: Console, member: Member | None = None) -> None:
        own = list(member.projects.all()) if member is not None else []
        is_limited = member is not None and member.sees_single_projects
        initial = {
            "role": value_of(member.own_role or member.role) if member is not None else Role.VIEWER,
            "sees": _ONLY if is_limited else _ALL,
            "projects": [str(row.pk) for row in own],
            "groups": [str(row.pk) for row in member.groups.all()] if member is not None else [],
            "opened_with": memberships.place(member) if member is not None else "",
        }
        super().__init__(data, initial=initial)
        self.console = console
        fields: Any = self.fields
        self.roles = {each.value: each for each in _givable(console)}
        fields["role"].choices = [(key, each.text) for key, each in self.roles.items()]
        # An archived project of theirs stays a choice.
        self.offered = {str(row.pk): row for row in [*console.projects, *own]}
        offer(fields["projects"], [(key, project_name(row)) for key, row in self.offered.items()])
        rows = Group.objects.filter(organization=console.organization)
        self.known_groups = {str(row.pk): row for row in rows}
        fields["groups"].choices = [(key, row.name) for key, row in self.known_groups.items()]

    @property
    def chosen_role(self) -> Role | OwnRole:
        """Return the role of a valid form."""
        return self.roles[self.cleaned_data["role"]].role

    @property
    def limit(self) -> list[Project] | None:
        """Return the projects of a valid form's limit; None for all."""
        if self.cleaned_data["sees"] == _ALL:
            return None
        return [self.offered[each] for each in self.cleaned_data["projects"]]

    @property
    def in_groups(self) -> list[Group]:
        """Return the groups of a valid form."""
        return [self.known_groups[each] for each in self.cleaned_data["groups"]]

    def clean(self) -> dict[str, Any]:
        """Refuse a limit that can't be, and a choice of all projects with newly chosen ones."""
        data = self.cleaned_data
        if self.errors:
            return data
        # The projects of now are sent with "all", too: the page hides them without unticking them.
        if data["sees"] == _ALL and not {*data["projects"]} <= {*self.initial["projects"]}:
            message = "Projects are chosen, too: choose “Only these” to keep them, or untick them."
            raise ValidationError({"sees": message})
        if self.limit == [] and not Project.objects.filter(groups__in=self.in_groups).exists():
            text = "Choose at least one project, or a group with one." if self.known_groups else _NO_PROJECT
            raise ValidationError({"projects": text})
        memberships.check_limit(self.console.organization.pk, self.chosen_role, self.limit)
        return data


class InviteForm(PlaceForm):
    """An invitation of a new person, or of a colleague from another organization."""

    email = forms.EmailField(label="E-mail address", required=False, max_length=email_addresses.MAX_CHARS)
    name = forms.CharField(
        label="User name",
        required=False,
        max_length=150,
        widget=forms.TextInput({"autocomplete": "off"}),
        help_text="Leave it empty to use the e-mail address. To add a colleague who has an account already, "
        "enter the name of that account.",
    )

    def clean(self) -> dict[str, Any]:
        """Find or make the person; raises `ValidationError` for a member and for a name that is taken."""
        data = super().clean()
        if self.errors:
            return data
        data["email"] = data["email"].lower()
        data["name"] = data["name"] or data["email"]
        if not data["name"]:
            message = "Enter an e-mail address, or the user name of a colleague who has an account."
            raise ValidationError({"email": message})
        organization = self.console.organization
        invitations.count(f"person {self.console.person.pk}")
        person = invitees.person_named(self.console.person, organization, data["name"], data["email"])
        data["member"] = Member(organization=organization, user=person)
        memberships.set_role(data["member"], self.chosen_role)
        return data


@require_safe
@page("accounts.view_member")
def list_page(request: HttpRequest, console: Console) -> HttpResponse:
    """Show a page of the members that match the search, in the order in which they joined."""
    search = MemberSearch(request.GET)
    context: dict[str, Any] = {"title": "Members", "clear_url": console.url("members")}
    if not search.is_valid():
        context["mistake"] = first_mistake(search)
        return render(request, console, "members.html", context, status=400)
    rows = search.found_in(_members(console)).order_by("pk").prefetch_related(*access.LIMITS)
    after = request.GET.get("after", "")
    if is_id(after):
        rows = rows.filter(pk__gt=int(after))
    found = list(rows[: PAGE + 1])
    may_change, own = (
        console.may("accounts.change_member"),
        access.role_in(console.person, console.organization.pk),
    )
    context |= {
        "search": search,
        "members": [
            (
                row,
                memberships.projects_seen(row),
                acceptance.state(row),
                may_change and not roles.is_above(access.rank(row), own),
                value_of(row.own_role or row.role),
                own == Role.OWNER
                and row.user != console.person
                and bool(row.user.email or not settings.SENDS_EMAIL),
            )
            for row in found[:PAGE]
        ],
        "role_choices": [(each.value, each.name) for each in _givable(console)] if may_change else [],
        "meanings": [
            *((role.value, meaning) for role, meaning in roles.MEANINGS.items()),
            *((row.name, own_roles.words(row.permissions)) for row in own_roles_of(console)),
        ],
        "may_invite": console.may("accounts.add_member"),
        "sends_email": settings.SENDS_EMAIL,
        "next_url": console.url("members", **search.query, after=found[PAGE - 1].pk)
        if len(found) > PAGE
        else "",
    }
    return render(request, console, "members.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.add_member")
def invite(request: HttpRequest, console: Console) -> HttpResponse:
    """Show the form of an invitation; add the person, and show the link of a new one."""
    form = InviteForm(request.POST or None, console)
    member = form.cleaned_data["member"] if form.is_valid() else None
    if member is not None:
        try:
            invitees.join(member, form.limit, form.in_groups)
        except ValidationError as error:  # of what somebody else has done just now
            form.add_error(None, error.messages)
    if member is None or form.errors:
        return render(request, console, "invite.html", {"title": "Invite a member", "form": form})
    if invitations.may_send(console.person, member.user):
        _mail(request, member)
        return redirect(console.url("invitation", member.pk))
    sees = memberships.sees(member)
    messages.success(request, f"{member.name} now has the role {member.role_name} in {sees}.")
    return redirect(console.url("members"))


@require_http_methods(["GET", "HEAD", "POST"])
@page("accounts.change_member")
def place_page(request: HttpRequest, console: Console, member_id: int) -> HttpResponse:
    """Show a member's role and projects; change them."""
    member = _changeable(console, member_id)
    form = PlaceForm(request.POST or None, console, member)
    if form.is_valid():
        sent = form.cleaned_data
        keeps_all = member.sees_single_projects and all(
            {*form.initial[name]} <= {*sent[name]} for name in ("projects", "groups")
        )
        is_narrower = form.limit is not None and not keeps_all
        try:
            memberships.change_place(
                member, form.chosen_role, form.limit, known=sent["opened_with"], in_groups=form.in_groups
            )
        except ValidationError as error:
            form.add_error(None, error.messages)
        else:
            note = _KEYS_STILL_WORK if is_narrower and member.user != console.person else ""
            sees = memberships.sees(member)
            given = f"{member.name} now has the role {member.role_name} in {sees}."
            messages.success(request, f"{given} This holds at once.{note}")
            return redirect(console.url("members") if member.user != console.person else "console:home")
    context = {"title": f"Role and projects of {member.name}", "form": form}
    return render(request, console, "member_place.html", context, 400 if form.errors else 200)


def _mail(request: HttpRequest, member: Member) -> None:
    """Mail the invitation to a person with an address, and add a message with the result."""
    try:
        is_sent = invitations.send(request, member)
    except TooManyAttempts as refusal:
        why = "Redis does not respond." if refusal.status == 503 else "Too many mails were sent."
        messages.error(request, f"{why} Copy the link instead.")
        return
    if is_sent:
        messages.success(request, f"The invitation was mailed to {member.user.email}.")
    elif is_sent is False:
        messages.error(request, "The mail could not be sent. Copy the link instead.")


def _without_link(request: HttpRequest, console: Console, member: Member) -> HttpResponse:
    """Say that only an operator can make a link for staff and for members of other organizations.

    Raises `PermissionDenied` for anybody else.
    """
    person = member.user
    if not (person.is_staff or person.is_superuser or person.memberships.count() > 1):
        raise PermissionDenied
    messages.error(
        request,
        "Only an operator can make a link for this person: they belong to another organization, too, or are "
        "staff.",
    )
    return redirect(console.url("members"))


def _may_mail_reset(console: Console, member: Member) -> bool:
    is_owner = access.role_in(console.person, console.organization.pk) == Role.OWNER
    can_get_mail = settings.SENDS_EMAIL and member.user.email and not acceptance.is_invited(member.user)
    return bool(is_owner and can_get_mail and member.user != console.person)


@require_POST
@page("accounts.change_member")
def new_password(request: HttpRequest, console: Console, member_id: int) -> HttpResponse:
    """Mail a member the link at which they choose another password; show it if there is no mail server."""
    member = _member(console, member_id)
    if _may_mail_reset(console, member):
        if why := mail_reset(request, member):
            messages.error(request, why)
        else:
            messages.success(request, f"A link for another password was mailed to {member.user.email}.")
        return redirect(console.url("members"))
    if not invitations.may_reset(console.person, member.user):
        return _without_link(request, console, member)
    context = {
        "title": f"New password of {member.name}",
        "member": member,
        "link": invitations.reset_link(request, member.user),
        "days": settings.PASSWORD_RESET_TIMEOUT // 86_400,
    }
    return render(request, console, "member_password.html", context)


@require_safe
@page("accounts.add_member")
def invitation(request: HttpRequest, console: Console, member_id: int) -> HttpResponse:
    """Show the link at which an invited person chooses a password."""
    member = _member(console, member_id)
    if not invitations.may_send(console.person, member.user):
        return _without_link(request, console, member)
    context = {
        "title": f"Invitation of {member.name}",
        "member": member,
        "sees": memberships.sees(member),
        "link": invitations.link(request, member.user),
        "days": settings.PASSWORD_RESET_TIMEOUT // 86_400,
    }
    return render(request, console, "invitation.html", context)


@require_POST
@page("accounts.change_member")
def change_role(request: HttpRequest, console: Console, member_id: int) -> HttpResponse:
    """Give a member another role; refuse roles above the person's own."""
    member, sent = _changeable(console, member_id), request.POST.get("role", "")
    found = next((each for each in _givable(console) if each.value == sent), None)
    if found is None:
        raise PermissionDenied
    try:
        memberships.change_role(member, found.role)
    except ValidationError as error:
        messages.error(request, error.messages[0])
    else:
        messages.success(request, f"{member.name} now has the role {member.role_name}.")
    return redirect(console.url("members") if member.user != console.person else "console:home")


@require_POST
@page("accounts.delete_member")
def remove(request: HttpRequest, console: Console, member_id: int) -> HttpResponse:
    """Remove a member. An invitation that was not accepted is withdrawn, and its user name is free again."""
    member = _changeable(console, member_id)
    result, note = f"{member.name} is no longer a member of {console.organization}.", ""
    try:
        if acceptance.is_invited(member.user):
            if member.is_limited and memberships.may_come_back(member):
                note = " The identity provider may still let them in, with all projects."
            acceptance.withdraw(member)
        else:
            if not memberships.remove(member):
                result = memberships.KEPT.format(member.name)
            if member.user != console.person:
                note = _KEYS_STILL_WORK
    except ValidationError as error:
        messages.error(request, error.messages[0])
        return redirect(console.url("members"))
    messages.success(request, result + note)
    return redirect(console.url("members") if member.user != console.person else "console:home")


def _members(console: Console) -> Any:
    rows = Member.objects.filter(organization=console.organization)
    return rows.select_related("user", "organization", "own_role")


def _member(console: Console, member_id: int) -> Member:
    row: Member | None = _members(console).filter(pk=member_id).first()
    if row is None:
        raise Http404("There is no such member.")
    return row


def _changeable(console: Console, member_id: int) -> Member:
    """Return the member; raises `PermissionDenied` if their role is above the person's own."""
    row = _member(console, member_id)
    if roles.is_above(access.rank(row), access.role_in(console.person, console.organization.pk)):
        raise PermissionDenied
    return row
