"""The order of names that end in numbers: "team 2" comes before "team 10"."""

from django.db.models import CharField, Func

_WORDS = "RTRIM(%(expressions)s, '0123456789')"


class NaturalOrder(Func):
    """A key for sorting by a column of names: the name, with zeros before the number at its end."""

    arity = 1
    output_field = CharField()
    # No number is longer than a name, which has at most 100 characters.
    template = (
        f"{_WORDS} || CASE WHEN {_WORDS} = %(expressions)s THEN '' "
        f"ELSE LPAD(SUBSTR(%(expressions)s, LENGTH({_WORDS}) + 1), 100, '0') END"
    )
