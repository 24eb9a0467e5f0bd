"""The order of names that end in numbers: "team 2" comes before "team 10"."""

from django.db.models import CharField, Func

_WORDS = "RTRIM(%(expressions)s, '0123456789')"


class NaturalOrder(Func):
    """A key for sorting by a column of names: the name, with zeros before the number at its end.

    "team 1" and "team 01" have the same key, so sort by the name, too, where pages follow each other. The
    migration accounts 0011 imports this class.
    """

    arity = 1
    output_field = CharField()
    # No number is longer than a name, which has at most 100 characters. LPAD would be a Python function on
    # SQLite.
    template = (
        f"{_WORDS} || CASE WHEN {_WORDS} = %(expressions)s THEN '' "
        f"ELSE SUBSTR('{'0' * 100}', LENGTH(%(expressions)s) - LENGTH({_WORDS}) + 1) "
        f"|| SUBSTR(%(expressions)s, LENGTH({_WORDS}) + 1) END"
    )
