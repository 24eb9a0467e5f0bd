"""Links with which who was invited chooses a password: each works once, for `PASSWORD_RESET_TIMEOUT`, and nothing of it is stored."""

from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.contrib.auth.tokens import PasswordResetTokenGenerator
from django.contrib.auth.views import PasswordResetConfirmView
from django.http import HttpRequest, HttpResponse
from django.urls import reverse, reverse_lazy
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode
from unfold.widgets import UnfoldAdminPasswordWidget

from accounts.models import Member


class _Tokens(PasswordResetTokenGenerator):
    """Django's, which the new password invalidates; so does whatever makes of this person more than whoever sent the link could invite."""

    key_salt = "accounts.invitations"

    def _make_hash_value(self, user: Any, timestamp: int) -> str:
        homes = Member.objects.filter(user=user).order_by("organization_id").values_list("organization_id", "role")
        return f"{super()._make_hash_value(user, timestamp)}{list(homes)}{user.is_staff}{user.is_superuser}"


_tokens = _Tokens()


def link(request: HttpRequest, user: User) -> str:
    """The address, complete, at which this person chooses a password."""
    arguments = [urlsafe_base64_encode(force_bytes(user.pk)), _tokens.make_token(user)]
    return request.build_absolute_uri(reverse("admin:invitation", args=arguments))


class ChoosePassword(PasswordResetConfirmView):
    """The page behind the link."""

    template_name = "accounts/choose_password.html"
    success_url = reverse_lazy("admin:login")
    token_generator = _tokens

    def get_form(self, form_class: Any = None) -> Any:
        """In the theme's look."""
        form = super().get_form(form_class)
        for field in form.fields.values():
            field.widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"})
        return form

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        """With what every page of the site needs."""
        title = {"title": "Choose a password" if self.validlink else "This link does not work"}
        return admin.site.each_context(self.request) | super().get_context_data(**kwargs) | title

    def form_valid(self, form: Any) -> HttpResponse:
        """The link works no more; who has a password signs in."""
        messages.success(self.request, "Your password is set. Sign in with it.")
        return super().form_valid(form)
