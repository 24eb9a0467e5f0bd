"""The errors of invalid requests; `explain` rewords msgspec's errors as OpenAI's.

    InvalidRequest          what callers see: message, param, code, status, is_stream
    UnresolvedReferences    the request refers to earlier answers
    Violation               a struct's `__post_init__` found a rule broken; msgspec adds the path

Codes: invalid_json, too_deep, duplicate_parameter, request_too_large (413), missing_required_parameter,
invalid_type, invalid_value, unknown_parameter, unsupported_media, unsupported_parameter, unsupported_value,
thread_unsupported_request.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec.inspect import ListType, LiteralType, StructType, Type, UnionType, type_info

_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
_TYPES = re.compile(r"`([^`]*)`")
_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_MAX_ECHO_CHARS = 100


class InvalidRequest(Exception):
    """The request is refused; `param` names the parameter at fault, if there is one (`messages[0].content`).

    `is_stream`: the body asks for a stream, as far as it could be read. Some dialects then send the error
    inside a stream.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = "invalid_value",
        status: int = 400,
        *,
        is_stream: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.is_stream = is_stream


class UnresolvedReferences(Exception):
    """The request refers to earlier answers, which have to be looked up before it can be read."""

    def __init__(self, previous: str | None, items: dict[str, str]) -> None:
        super().__init__()
        self.previous = previous
        """The id of the answer that the request continues."""
        self.items = items
        """For each referenced item of an earlier answer: its id, and the path of that id in the request."""


class Violation(ValueError):
    """A rule that types can't express is broken: `member` is the path from the struct that raises it,
    `allowed` says what is valid.
    """

    def __init__(self, member: str, allowed: str, code: str = "invalid_value") -> None:
        super().__init__(allowed)
        self.member = member
        self.allowed = allowed
        self.code = code


def duplicate(name: str) -> InvalidRequest:
    """Return the error for a parameter that was sent twice."""
    return InvalidRequest(f"Duplicate parameter: '{name}'.", name, "duplicate_parameter")


def unknown(name: str, known: Iterable[str]) -> InvalidRequest:
    """Return the error for a parameter that does not exist, which names those that do."""
    shown = name[:_MAX_ECHO_CHARS]
    supported = ", ".join(f"'{each}'" for each in known)
    return InvalidRequest(
        f"Unknown parameter: '{shown}'. Supported parameters are: {supported}.", shown, "unknown_parameter"
    )


def explain(error: msgspec.ValidationError, request_type: type, sent: Any = None) -> InvalidRequest:
    """Return the `InvalidRequest` for msgspec's error about a body that is not a valid `request_type`.

    `sent`: the decoded body, or None if it is not known.
    """
    what, path = _parts(str(error))
    if isinstance(error.__cause__, Violation):
        return _violation(error.__cause__, path)
    if what.startswith("Object missing required field"):
        return _missing(_join(path, _TYPES.findall(what)[-1]))
    if not path:
        return InvalidRequest("Invalid body: expected a JSON object.", code="invalid_json")
    if what.startswith("Invalid"):
        return _not_allowed(what, path, _allowed(request_type, sent, path))
    if not what.startswith("Expected"):
        return InvalidRequest(
            f"Invalid value for '{_param(path)}': the number is out of range.", _param(path)
        )
    return _unexpected(what, _param(path))


def _parts(complaint: str) -> tuple[str, str]:
    """Split msgspec's message into the error and its path, which may be empty: "Expected ... - at `$.n`",
    "... - at `key` in `$.metadata`".
    """
    what, found, where = complaint.rpartition(" - at `")
    if not found:
        return complaint, ""
    return what, where.rpartition("$")[2].lstrip(".").rstrip("`")


def _violation(violation: Violation, path: str) -> InvalidRequest:
    param = _join(path, violation.member)
    if violation.code == "missing_required_parameter":
        return InvalidRequest(
            f"Missing required parameter: '{param}': {violation.allowed}.", param, violation.code
        )
    return InvalidRequest(f"Invalid value for '{param}': {violation.allowed}.", param, violation.code)


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _unexpected(what: str, param: str) -> InvalidRequest:
    """Reword a wrong type ("Expected `int | null`, got `str`") or a wrong value ("Expected `int` >= 1")."""
    is_type = "`, got `" in what
    kind, code = ("type", "invalid_type") if is_type else ("value", "invalid_value")
    expected = _TYPES.sub(_in_words, what.removeprefix("Expected ")).replace(r"\\Z'", "$'")
    return InvalidRequest(f"Invalid {kind} for '{param}': expected {expected}.", param, code)


def _in_words(types: re.Match[str]) -> str:
    # Null counts as absent, so it is not offered beside other types.
    names = [name for name in types[1].split(" | ") if name != "null"] or ["null"]
    return " or ".join(_WORDS.get(name, name) for name in names)


def _not_allowed(what: str, path: str, words: Iterable[str]) -> InvalidRequest:
    got = what.partition("value ")[2]
    shown = got if len(got) <= _MAX_ECHO_CHARS else got[:_MAX_ECHO_CHARS] + "…'"
    allowed = ", ".join(f"'{word}'" for word in dict.fromkeys(words))
    return InvalidRequest(
        f"Invalid value for '{_param(path)}': {shown}. Supported values are: {allowed}.", _param(path)
    )


def _param(path: str) -> str:
    return path.replace("[...]", "")  # msgspec does not name the key of a dict


def _join(path: str, member: str) -> str:
    return f"{_param(path)}.{member}" if path else member


@cache
def _schema(request_type: type) -> Type:
    return type_info(request_type)


def _allowed(request_type: type, sent: Any, path: str) -> Iterator[str]:
    """Yield the literals that are allowed at `path`."""
    places: Iterable[Type] = [_schema(request_type)]
    for step in _STEP.findall(path):
        places = [inner for place in places for inner in _inside(place, sent, step)]
        sent = _member(sent, step)
    for place in places:
        for type_ in place.types if isinstance(place, UnionType) else (place,):
            if isinstance(type_, LiteralType):
                yield from map(str, type_.values)


def _inside(place: Type, sent: Any, step: str) -> Iterator[Type]:
    """Yield the types that one step of a path (`[0]` or a name) leads to; in a union, all that match."""
    match place:
        case UnionType(types=types):
            for type_ in types:
                yield from _inside(type_, sent, step)
        case ListType(item_type=inner) if step.startswith("["):
            yield inner
        case StructType(tag_field=tag_field, tag=tag) if step == tag_field:
            yield LiteralType((tag,))
        case StructType(fields=fields, tag_field=tag_field, tag=tag) if _member(sent, tag_field) in (
            None,
            tag,
        ):
            yield from (field.type for field in fields if field.encode_name == step)


def _member(sent: Any, step: str | None) -> Any:
    """Return what was sent at one step, None if nothing was."""
    if isinstance(sent, dict):
        return sent.get(step)
    if isinstance(sent, list) and step:
        return sent[int(step.strip("[]"))]
    return None
