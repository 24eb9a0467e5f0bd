"""Pages for operators: domains to approve, identity providers to loosen, second factors that people lost."""

from typing import Any

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils import timezone
from unfold.decorators import display
from unfold.widgets import UnfoldBooleanSwitchWidget

from accounts.natural_order import NaturalOrder
from accounts.pages.admin_mixins import ChoosesRows, ConstrainedForm, ListAdmin, ReadOnlyAdmin
from accounts.pages.tenant_admin import TenantAdmin
from accounts.sign_in import change_mail
from accounts.sign_in.models import EmailDomain, IdentityProvider

site: Any = admin.site  # our own `Site`
site.leave_out("allauth")
# As the menu and the console call them.
Authenticator._meta.verbose_name = "second factor"
Authenticator._meta.verbose_name_plural = "second factors"


class EmailDomainForm(ConstrainedForm):
    """A domain, and whether it is the organization's."""

    is_approved = forms.BooleanField(
        label="Approved",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="The organization has shown that this domain is its own. Its provider may then sign in "
        "everybody who has an address of it.",
    )

    class Meta:
        model = EmailDomain
        fields = ["organization", "domain", "joins_as"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["is_approved"].initial = self.instance.approved_at is not None

    def clean(self) -> dict[str, Any]:
        """Note the time of the approval, before the constraints are checked."""
        data: dict[str, Any] = super().clean() or {}
        is_approved = data.get("is_approved")
        self.instance.approved_at = (self.instance.approved_at or timezone.now()) if is_approved else None
        return data


@admin.register(EmailDomain)
class EmailDomainAdmin(TenantAdmin, ChoosesRows, ListAdmin):
    """Domains of organizations."""

    nothing_yet = "No domains yet. Owners add them in the console, at Settings, Sign-in."
    form = EmailDomainForm
    list_display = ["domain", "organization", "approved_at", "joins_as", "created_at"]
    list_filter = ["organization"]
    list_select_related = ["organization"]
    search_fields = ["domain", "organization__name"]
    ordering = ["-id"]
    autocomplete_fields = ["organization"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Let operators only approve an existing domain: an owner may change the rest meanwhile."""
        return ["organization", "domain", "joins_as"] if obj else []


@admin.register(IdentityProvider)
class IdentityProviderAdmin(TenantAdmin, ListAdmin):
    """Identity providers of organizations. Owners enter them; operators help when one fails."""

    nothing_yet = "No identity providers yet. Owners enter them in the console, at Settings, Sign-in."
    list_display = ["organization", "issuer", "is_required", "used_at"]
    list_select_related = ["organization"]
    search_fields = ["organization__name", "issuer"]
    ordering = [NaturalOrder("organization__name")]
    nobody_may = ("add",)
    fields = [
        "organization", "issuer", "client_id", "is_required", "groups_claim", "extra_scopes", "group_roles",
        "default_role", "used_at", "created_at",
    ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        """Let operators change only whether the provider is required."""
        return [name for name in self.fields if name != "is_required"]

    def delete_model(self, request: HttpRequest, obj: IdentityProvider) -> None:
        SocialAccount.objects.filter(provider=str(obj.pk)).delete()
        super().delete_model(request, obj)


# In the words of the console's page of an account.
_FACTORS = {
    Authenticator.Type.TOTP: "Authenticator app",
    Authenticator.Type.WEBAUTHN: "Passkey",
    Authenticator.Type.RECOVERY_CODES: "Recovery codes",
}


@admin.register(Authenticator)
class AuthenticatorAdmin(ReadOnlyAdmin, ListAdmin):
    """Second factors of people. Their secrets are shown nowhere."""

    nothing_yet = "No second factors yet. People add them in the console, at Your account."
    list_display = ["user", "kind", "created_at", "last_used_at"]
    list_select_related = ["user"]
    search_fields = ["user__username", "user__email"]
    ordering = ["-id"]
    fields = readonly_fields = ["user", "kind", "created_at", "last_used_at"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let superusers remove a factor that its person has lost."""
        return bool(request.user.is_active and request.user.is_superuser)

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return none: each removal is one decision."""
        return {}

    def delete_model(self, request: HttpRequest, obj: Authenticator) -> None:
        super().delete_model(request, obj)
        change_mail.notify(obj.user, change_mail.REMOVED[Authenticator.Type(obj.type)])

    @display(description="Kind")
    def kind(self, row: Authenticator) -> str:
        return str(_FACTORS.get(row.type, row.type))
