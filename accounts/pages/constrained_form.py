"""The form of a row whose constraints are about columns too that the page only shows."""

from itertools import chain

from django import forms
from django.core.exceptions import ValidationError


class ConstrainedForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """Tells what no two rows may have. Django's own form looks only at constraints of which it has all
    columns.
    """

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]  # Django's hook for it, which its stubs leave out
        if self.errors:
            return
        try:
            self.instance.validate_constraints()
        except ValidationError as error:
            for each in chain.from_iterable(error.error_dict.values()):
                self.add_error(self._told_at(each), each)

    def _told_at(self, error: ValidationError) -> str | None:
        """The last of its columns that can be typed: the theme shows some forms without what is told of them
        as a whole.
        """
        typed = [name for name in (error.params or {}).get("unique_check", ()) if name in self.fields]
        return typed[-1] if typed else None
