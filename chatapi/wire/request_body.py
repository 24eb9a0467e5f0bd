"""Reads a request's body into the struct of a protocol; raises `InvalidRequest` naming the parameter.

Types are strict ("5" is not 5, true is not 1, 1.0 is no integer), caps are in caps.py, and a parameter that
is `null` counts as absent (within a parameter, its type says whether `null` is allowed). Of the parameters
that the struct does not have, engine parameters are kept in `extras` for deployments that ask for them; all
others are dropped and named in `ignored`.
"""

import hashlib
import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from chatapi.wire import caps, json_guard
from chatapi.wire.generation_request import GenerationRequest, check_fields
from chatapi.wire.invalid_request import InvalidRequest, explain
from chatapi.wire.parameters import ENGINE_PARAMETERS

# Fields that every protocol's struct has, and that no client can set.
_OWN_FIELDS: Final = frozenset({"extras", "ignored"})
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_.\-\[\]]")
_Request = TypeVar("_Request", bound=msgspec.Struct)
_encoder = msgspec.json.Encoder()


def read(
    body: bytes,
    request_type: type[_Request],
    default_model: str | None = None,
    complete: Callable[[dict[str, Any]], None] | None = None,
) -> _Request:
    """Return the request in `body`; one that names no model is for `default_model`.

    `complete` changes the decoded parameters before they are validated: it adds those that the protocol lets
    clients leave out, and may raise `InvalidRequest`.
    """
    try:
        return _converted(body, request_type, default_model, complete)
    except InvalidRequest as error:
        error.is_stream = _asks_for_stream(body)
        raise


def without(body: bytes, names: Collection[str]) -> bytes:
    """Return the body without these parameters. Raises `InvalidRequest` for invalid JSON."""
    sent = json_guard.members(body)
    return _encoder.encode({name: value for name, value in sent.items() if name not in names})


def client_parameters(request_type: type[msgspec.Struct]) -> list[str]:
    """Return the names of the parameters that a client may send, in the order of the struct.

    They exclude the struct's `refused` fields: those that it always refuses, or that only the service sets.
    """
    others: frozenset[str] = _OWN_FIELDS | getattr(request_type, "refused", frozenset())
    return [name for name in request_type.__struct_encode_fields__ if name not in others]


def same_members(sent: msgspec.Struct) -> dict[str, Any]:
    """Return the members of a `GenerationRequest` that the body has under the same name, except those in the
    sets of its struct (`check_body`).
    """
    names = _same_fields(type(sent))
    return {name: value for name in names if (value := getattr(sent, name)) is not None}


@cache
def _same_fields(request_type: type[msgspec.Struct]) -> frozenset[str]:
    same = frozenset(request_type.__struct_fields__).intersection(GenerationRequest.__struct_fields__)
    return same.difference(*_named_fields(request_type))


def check_body(request_type: type[msgspec.Struct]) -> None:
    """Check that no field of a body is forgotten.

    A field becomes the member of a `GenerationRequest` with the same name (`same_members`), or the struct
    names it in one of three sets: `rewritten` (its own code makes other members of it), `refused`, or
    `without_effect`, which also has fields of its fields (`reasoning.mode`).
    """
    check_fields(request_type, _same_fields(request_type), *_named_fields(request_type))


def _named_fields(request_type: type[msgspec.Struct]) -> list[set[str]]:
    sets = (getattr(request_type, name, ()) for name in ("rewritten", "refused", "without_effect"))
    return [{name for name in names if "." not in name} for names in sets]


def digest(protocol: str, request: msgspec.Struct) -> str:
    """Return the SHA-256, in hex, of the protocol's name and the struct: equal requests have the same one.

    The books remember it for a day, so a struct's fields keep their names and their order.
    """
    digest = hashlib.sha256(protocol.encode() + b"\n")
    digest.update(_encoder.encode(request))  # not joined: a large request would be copied
    return digest.hexdigest()


def _converted(
    body: bytes,
    request_type: type[_Request],
    default_model: str | None,
    complete: Callable[[dict[str, Any]], None] | None,
) -> _Request:
    try:
        sent = json_guard.decode(body)
    except msgspec.ValidationError:
        raise _out_of_range(body, request_type) from None
    found = _sorted(sent, frozenset(request_type.__struct_fields__) - _OWN_FIELDS)
    if default_model is not None:
        found.setdefault("model", default_model)
    if complete is not None:
        complete(found)
    try:
        return msgspec.convert(found, request_type)
    except msgspec.ValidationError as error:
        raise explain(error, request_type, sent) from None


class _Streaming(msgspec.Struct):
    stream: Any = None


def _asks_for_stream(body: bytes) -> bool:
    """Return whether an invalid body has `"stream": true`; False if it can't be decoded."""
    try:
        return msgspec.json.decode(body, type=_Streaming).stream is True
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def _sorted(sent: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the known parameters by name, and the others in `extras` and `ignored`, all without nulls."""
    if len(sent) > len(known) + len(ENGINE_PARAMETERS) + caps.MAX_IGNORED:
        raise _too_many_unknown()  # without looking at each: there can be a quarter of a million
    found: dict[str, Any] = {}
    extras: dict[str, Any] = {}
    ignored: list[str] = []
    for name, value in sent.items():
        if value is None:
            continue
        if name in known:
            found[name] = value
        elif name in ENGINE_PARAMETERS:
            if len(_encoder.encode(value)) > caps.MAX_EXTRA_BYTES:
                message = f"Invalid value for '{name}': expected at most {caps.MAX_EXTRA_BYTES} bytes."
                raise InvalidRequest(message, name)
            extras[name] = value
        else:
            ignored.append(name)
    if len(ignored) > caps.MAX_IGNORED:
        raise _too_many_unknown()
    # Only characters that are safe in a header and in a line of a log.
    names = tuple(_NOT_IN_A_NAME.sub("?", name[: caps.MAX_NAME_CHARS]) for name in ignored)
    return found | {"extras": extras, "ignored": names}


def _too_many_unknown() -> InvalidRequest:
    message = f"The body has more than {caps.MAX_IGNORED} unknown parameters."
    return InvalidRequest(message, code="unknown_parameter")


def _out_of_range(body: bytes, request_type: type[_Request]) -> InvalidRequest:
    """Return the error for a number that neither a float nor an integer of 4300 digits can hold. Typed
    decoding finds its path.
    """
    try:
        msgspec.json.decode(body, type=request_type)
    except msgspec.ValidationError as error:
        found = explain(error, request_type)
        if found.code != "missing_required_parameter":
            return found
    return InvalidRequest("A number in the body is out of range.")
