"""Reads a catalog file: TOML to checked values, or to an error with the line of the first mistake.

It does not read the database.

    [[models]]
    id = "llama-3.1-8b"
    aliases = ["claude-haiku-4-5"]      # other names that clients may send
    context_window = 131072
    max_output_tokens = 8192
    [models.price]                      # US dollars per million tokens; without a price it is not served
    input_per_mtok = "0.10"
    cached_input_per_mtok = "0.05"      # as input_per_mtok when left out
    cache_write_per_mtok = "0.125"      # as input_per_mtok when left out
    cache_write_1h_per_mtok = "0.20"    # as cache_write_per_mtok when left out
    reasoning_per_mtok = "0.60"         # as output_per_mtok when left out
    output_per_mtok = "0.40"
    [[models.deployments]]
    engine = "openai_compatible"        # or "anthropic", "sandbox"
    base_url = "http://127.0.0.1:8080/v1"

docs/catalog.example.toml shows every key.
"""

import re
import tomllib
from collections.abc import Collection, Iterable
from datetime import date
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from chatapi.catalog.line_numbers import line_of
from chatapi.models import (
    MAX_ALIASES,
    MAX_BASE_URL_CHARS,
    MAX_NAME_CHARS,
    MAX_NUMBER,
    MAX_OWNER_CHARS,
    MAX_RETRIES,
    MAX_TIMEOUT_MS,
    TIMEOUTS,
    USUAL_RETRIES,
    Engine,
    ModelKind,
    OnDisconnect,
    Streaming,
    aliases_mistake,
    api_key_env_mistake,
    base_url_mistake,
    extra_parameters_mistake,
    streaming_mistake,
)
from chatapi.wire.parameters import ModelName
from usage import pricing

_NO_NUL = r"^[^\x00]*\Z"
Positive = Annotated[int, Meta(ge=1, le=MAX_NUMBER)]
Natural = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Retries = Annotated[int, Meta(ge=0, le=MAX_RETRIES)]
Milliseconds = Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS, pattern=_NO_NUL)]
ParameterName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$")]


class CatalogError(Exception):
    """A mistake in the file: `<file>: <path>: <what is wrong and what is allowed>`."""


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens, as strings, because a float is not exactly 0.1."""

    input_per_mtok: str
    output_per_mtok: str
    cached_input_per_mtok: str | UnsetType = UNSET
    reasoning_per_mtok: str | UnsetType = UNSET
    cache_write_per_mtok: str | UnsetType = UNSET
    cache_write_1h_per_mtok: str | UnsetType = UNSET

    @property
    def value(self) -> pricing.Price:
        """Return the price in nanodollars. Raises `ValueError`."""
        given = {
            f"{name}_nanodollars": pricing.from_usd(usd)
            for name, usd in msgspec.structs.asdict(self).items()
            if usd is not UNSET
        }
        given.setdefault("cached_input_per_mtok_nanodollars", given["input_per_mtok_nanodollars"])
        return pricing.Price(**given)


# At import, because a field that is in one place only would be dropped without an error.
assert {f"{name}_nanodollars" for name in Price.__struct_fields__} == {*pricing.PRICE_COLUMNS}, (
    "the file's prices are the database's"
)


class Timeouts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The time limits of an upstream; missing ones are the engine's defaults."""

    connect_ms: Milliseconds | UnsetType = UNSET
    first_delta_ms: Milliseconds | UnsetType = UNSET
    between_deltas_ms: Milliseconds | UnsetType = UNSET
    total_ms: Milliseconds | UnsetType = UNSET


assert Timeouts.__struct_fields__ == TIMEOUTS, "the file's timeouts are the database's"


# Unknown fields are refused here and below: a mistyped key would silently mean its default.
class Deployment(Struct, frozen=True, forbid_unknown_fields=True):
    """One way to serve a model."""

    engine: str
    name: Name | UnsetType = UNSET
    base_url: Annotated[str, Meta(max_length=MAX_BASE_URL_CHARS)] = ""
    upstream_model: Annotated[str, Meta(max_length=MAX_NAME_CHARS, pattern=_NO_NUL)] = ""
    api_key_env: str = ""
    weight: Positive = 1
    priority: Natural = 0
    max_concurrent: Positive | None = None
    retries: Retries = USUAL_RETRIES
    on_disconnect: OnDisconnect = OnDisconnect.CANCEL
    streaming: Streaming = Streaming.ALWAYS
    timeouts: Timeouts = Timeouts()
    extra_parameters: list[ParameterName] = []
    allow_remote_media: bool = False
    is_active: bool = True


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """A model with its price and deployments; without them it is known, but not served."""

    id: ModelName
    context_window: Positive
    max_output_tokens: Positive
    deployments: list[Deployment]
    kind: ModelKind = ModelKind.CHAT
    price: Price | UnsetType = UNSET
    owned_by: Annotated[str, Meta(min_length=1, max_length=MAX_OWNER_CHARS, pattern=_NO_NUL)] | UnsetType = (
        UNSET
    )
    aliases: Annotated[list[ModelName], Meta(max_length=MAX_ALIASES)] = []
    deprecated_on: date | None = None
    is_active: bool = True

    def named_deployments(self) -> dict[str, Deployment]:
        """Return the deployments by name: the given one, otherwise the upstream's host or the engine.

        A second deployment of the same host or engine gets `-2`.
        """
        named: dict[str, Deployment] = {}
        given = {deployment.name for deployment in self.deployments}
        for deployment in self.deployments:
            name = deployment.name
            if name is UNSET:
                name = _free(urlsplit(deployment.base_url).netloc or deployment.engine, named.keys() | given)
            named[name] = deployment
        return named


class Catalog(Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file."""

    models: Annotated[list[Model], Meta(min_length=1)]


def read(path: Path) -> Catalog:
    """Return the catalog in the file. Raises `CatalogError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CatalogError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"{path}: can't be read: it is not UTF-8") from error
    try:
        return parse(text)
    except ValueError as error:
        raise CatalogError(f"{path}: {error}") from error


def parse(text: str) -> Catalog:
    """Return the catalog in a TOML text. Raises `ValueError` with the path and line of the first mistake."""
    try:
        catalog = msgspec.convert(tomllib.loads(text), Catalog)
    except msgspec.ValidationError as error:
        raise ValueError(_placed(*_readable(str(error)), text)) from error
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    for path, mistake in _mistakes(catalog):
        raise ValueError(_placed(path, mistake, text))
    return catalog


def _placed(path: str, mistake: str, text: str) -> str:
    line = line_of(text, path)
    return f"{path or 'the file'}: {mistake}" + (f" (line {line})" if line else "")


def _mistakes(catalog: Catalog) -> Iterable[tuple[str, str]]:
    """Yield the mistakes that types can't express, each with its path."""
    # All ids are taken before the first alias is read: an alias may clash with a later model.
    seen: set[str] = set()
    taken = {model.id for model in catalog.models}
    for number, model in enumerate(catalog.models):
        path = f"models[{number}]"
        if model.id in seen:
            yield f"{path}.id", f"{model.id!r} is in the file twice"
        seen.add(model.id)
        if mistake := aliases_mistake(model.aliases, taken):
            yield f"{path}.aliases", mistake
        taken.update(model.aliases)
        # Otherwise every request would reserve more tokens than the model can generate.
        if model.max_output_tokens > model.context_window:
            yield f"{path}.max_output_tokens", f"must be at most context_window, {model.context_window}"
        yield from _price_mistakes(path, model)
        yield from _deployment_mistakes(path, model)


def _price_mistakes(path: str, model: Model) -> Iterable[tuple[str, str]]:
    if model.price is UNSET:
        return
    for key, usd in msgspec.structs.asdict(model.price).items():
        try:
            if usd is not UNSET:
                pricing.from_usd(usd)
        except ValueError as error:
            yield f"{path}.price.{key}", str(error)


def _deployment_mistakes(path: str, model: Model) -> Iterable[tuple[str, str]]:
    names: set[str] = set()
    for number, deployment in enumerate(model.deployments):
        here = f"{path}.deployments[{number}]"
        yield from ((f"{here}.{key}", mistake) for key, mistake in _value_mistakes(deployment) if mistake)
        if isinstance(deployment.name, str):
            if deployment.name in names:
                yield f"{here}.name", f"{deployment.name!r} is there twice in this model"
            names.add(deployment.name)
    # A deployment without a name gets that of its host, which may be too long.
    for name in model.named_deployments():
        if len(name) > MAX_NAME_CHARS:
            yield (
                f"{path}.deployments",
                f"the host {name[:40]}… is too long to be a name: give its deployment one",
            )


def _value_mistakes(deployment: Deployment) -> Iterable[tuple[str, str | None]]:
    is_known = deployment.engine in Engine.values
    yield (
        "engine",
        None if is_known else f"{deployment.engine!r} must be one of {', '.join(sorted(Engine.values))}",
    )
    yield "streaming", streaming_mistake(deployment.engine, deployment.streaming)
    yield "base_url", base_url_mistake(deployment.engine, deployment.base_url)
    yield "api_key_env", api_key_env_mistake(deployment.api_key_env)
    yield "extra_parameters", extra_parameters_mistake(deployment.extra_parameters)


def _free(name: str, taken: Collection[object]) -> str:
    # There are more candidates than names taken, so one is free.
    candidates = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))]
    return next(candidate for candidate in candidates if candidate not in taken)


_TYPES = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number without quotes",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_ALLOWED = {
    **dict.fromkeys(("id", "aliases"), "1 to 128 ASCII letters, digits or . _ : / @ + -"),
    "extra_parameters": "names of request parameters, such as top_k",
    "kind": f"one of {', '.join(ModelKind.values)}",
    "on_disconnect": f"one of {', '.join(OnDisconnect.values)}",
    "streaming": f"one of {', '.join(Streaming.values)}",
    **dict.fromkeys(("name", "upstream_model", "owned_by"), "text without a NUL character"),
}
_TABLES: dict[str, type[Struct]] = {
    "": Catalog,
    "models": Model,
    "price": Price,
    "deployments": Deployment,
    "timeouts": Timeouts,
}


def _readable(error: str) -> tuple[str, str]:
    """Return the path and a readable text of an error of msgspec.

    "Expected `str`, got `float` - at `$.a[0].b`" has the path "a[0].b".
    """
    # The last " - at": a key of the file may contain it, too.
    mistake, is_placed, path = error.rpartition(" - at `$")
    mistake, path = (mistake, path.rstrip("`").lstrip(".")) if is_placed else (error, "")
    key = re.sub(r"\[[^\]]*\]$", "", path).rpartition(".")[2]
    if "unknown field" in mistake and key in _TABLES:
        allowed = ", ".join(_TABLES[key].__struct_fields__)
        mistake = f"{mistake.removeprefix('Object contains ')}; allowed are {allowed}"
    elif ("regex" in mistake or "enum" in mistake) and key in _ALLOWED:
        mistake = f"must be {_ALLOWED[key]}"
    # msgspec has no way to set its messages.
    mistake = mistake.replace("Object missing required field", "lacks").replace("Expected", "must be")
    mistake = re.sub(r"`(\w+)`", lambda word: _TYPES.get(word[1], word[1]), mistake)
    return path, mistake
