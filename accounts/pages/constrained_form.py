"""The form of a row whose constraints are about columns too that the page only shows."""

from django import forms
from django.core.exceptions import ValidationError


class ConstrainedForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """Tells what no two rows may have. Django's own form looks only at constraints of which it has all columns."""

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]  # Django's hook for it, which its stubs leave out
        if self.errors:
            return
        try:
            self.instance.validate_constraints()
        except ValidationError as error:
            self.add_error(None, error)
