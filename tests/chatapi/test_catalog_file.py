"""The catalog as a file: a written catalog reads back to the same rows, and an error names its line."""

import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatapi.catalog import file, loading, writing
from chatapi.catalog.line_numbers import line_of
from chatapi.models import (
    MAX_NUMBER,
    MAX_RETRIES,
    MAX_TIMEOUT_MS,
    TIMEOUTS,
    Deployment,
    ModelKind,
    ServedModel,
    api_key_env_mistake,
)
from chatapi.wire.parameters import ENGINE_PARAMETERS
from tests.cast import PRICE
from tests.chatapi.test_compose import README_SETTINGS
from usage.books import prices
from usage.database.clock import database_now
from usage.models import Price
from usage.pricing import FREE, MAX_USD, NANODOLLARS
from usage.pricing import Price as PriceValue

pytestmark = pytest.mark.django_db

# ---- the file of any rows makes the same rows again

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
names = texts.filter(lambda text: text.strip())
numbers = st.integers(1, MAX_NUMBER)
nanodollars = st.integers(0, MAX_USD * NANODOLLARS)
upstreams = st.fixed_dictionaries(
    {
        "engine": st.just("openai_compatible"),
        "base_url": st.sampled_from(
            ["http://vllm:8000/v1", "https://[::1]:8443/v1", "http://häuser.example/v1"]
        ),
        "api_key_env": st.from_regex(r"([A-Z_][A-Z0-9_]{0,20})?", fullmatch=True).filter(
            lambda name: not api_key_env_mistake(name)
        ),
    }
)
sandboxes = st.fixed_dictionaries({"engine": st.just("sandbox")})
others = st.fixed_dictionaries(
    {
        "upstream_model": texts,
        "weight": numbers,
        "priority": st.integers(0, MAX_NUMBER),
        "max_concurrent": st.none() | numbers,
        "retries": st.integers(0, MAX_RETRIES),
        "on_disconnect": st.sampled_from(["cancel", "drain", "continue"]),
        "streaming": st.sampled_from(["always", "without_logprobs", "as_requested", "never"]),
        "timeouts": st.dictionaries(st.sampled_from(TIMEOUTS), st.integers(1, MAX_TIMEOUT_MS)),
        "extra_parameters": st.lists(st.sampled_from(sorted(ENGINE_PARAMETERS)), max_size=4),
        "allow_remote_media": st.booleans(),
        "is_active": st.booleans(),
    }
)
deployments = st.tuples(upstreams | sandboxes, others).map(lambda parts: parts[0] | parts[1])
models = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(ModelKind.values),
        "owned_by": names,
        "max_output_tokens": st.integers(1, 1_000),
        "context_window": st.integers(1_000, MAX_NUMBER),
        "is_active": st.booleans(),
        "deployments": st.dictionaries(names, deployments, max_size=3),
        "price": st.none() | st.builds(PriceValue, *[nanodollars] * 3, *[st.none() | nanodollars] * 3),
    }
)
catalogs = st.dictionaries(
    st.from_regex(r"[A-Za-z0-9._:/@+-]{1,20}", fullmatch=True), models, min_size=1, max_size=4
)


def make(catalog: dict[str, dict[str, Any]]) -> None:
    """Create the rows of the catalog."""
    for key, values in catalog.items():
        row = ServedModel(
            id=key, **{name: value for name, value in values.items() if name not in ("deployments", "price")}
        )
        row.full_clean()
        row.save()
        for name, fields in values["deployments"].items():
            deployment = Deployment(model=row, name=name, **fields)
            deployment.full_clean()
            deployment.save()
        if values["price"] is not None:
            prices.change(key, values["price"])


def rows() -> tuple[list[Any], list[Any], dict[str, PriceValue]]:
    """Return all values that a file contains."""
    deployments = [
        {key: value for key, value in row.items() if key != "id"}
        for row in Deployment.objects.order_by("model", "name").values()
    ]
    return (
        list(ServedModel.objects.order_by("id").defer("created_at").values_list(*_SAID)),
        deployments,
        prices.current(),
    )


_SAID = ("id", "kind", "context_window", "max_output_tokens", "owned_by", "is_active")


def forget() -> None:
    """Delete the catalog."""
    ServedModel.objects.all().delete()
    Price.objects.all().delete()


@given(catalogs)
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_is_written_is_read_back_to_the_same_rows(catalog: dict[str, dict[str, Any]]) -> None:
    forget()
    make(catalog)
    before, text = rows(), writing.write()
    assert {model.verb for model in loading.load(file.parse(text)).models} == {"unchanged"}
    forget()
    loading.load(file.parse(text))
    assert rows() == before


def test_the_command_prints_what_loadcatalog_reads(small: ServedModel, tmp_path: Any) -> None:
    printed, shown = io.StringIO(), io.StringIO()
    call_command("exportcatalog", stdout=printed)
    path = tmp_path / "catalog.toml"
    path.write_text(printed.getvalue())
    call_command("loadcatalog", str(path), stdout=shown)
    assert shown.getvalue() == "small: unchanged\n"


def test_a_future_price_is_a_comment_and_stays_when_the_file_is_loaded(small: ServedModel) -> None:
    prices.change("small", FREE, database_now() + timedelta(days=1))
    text = writing.write()
    assert "# from " in text
    assert 'input_per_mtok = "0.15"' in text
    loading.load(file.parse(text))
    assert Price.objects.count() == 2


def test_an_empty_catalog_is_a_file_without_models(db: None) -> None:
    assert "[[" not in writing.write()


def test_a_row_that_no_file_can_say_is_named(small: ServedModel) -> None:
    Deployment.objects.update(timeouts={"connect": 1})
    with pytest.raises(CommandError, match="unknown field connect"):
        call_command("exportcatalog")


def test_a_file_without_an_owner_keeps_the_models_owner(small: ServedModel) -> None:
    text = "\n".join(line for line in writing.write().splitlines() if not line.startswith("owned_by"))
    assert loading.load(file.parse(text)).lines == ["small: unchanged"]
    assert ServedModel.objects.get().owned_by == "acme"


# ---- a plan

Parse = Callable[[str], file.Catalog]
MODEL = """
[[models]]
id = "small"
context_window = 8192
max_output_tokens = 4096
[models.price]
input_per_mtok = "0.10"
output_per_mtok = "0.40"
[[models.deployments]]
engine = "sandbox"
"""


def test_a_plan_says_what_loading_does_and_does_nothing(
    small: ServedModel, django_assert_max_num_queries: Any
) -> None:
    catalog = file.parse(MODEL + MODEL.replace("small", "large"))
    before = rows()
    with django_assert_max_num_queries(4):  # PostgreSQL is asked for the time
        plan = loading.plan(catalog, deactivate_missing=True)
    assert rows() == before
    assert plan.lines == loading.load(catalog, expected_digest=loading.plan(catalog).digest).lines


def test_what_was_planned_is_not_done_when_the_catalog_is_another_by_then(small: ServedModel) -> None:
    digest = loading.plan(file.parse(MODEL)).digest
    ServedModel.objects.update(context_window=5_000)
    before = rows()
    with pytest.raises(loading.CatalogChanged):
        loading.load(file.parse(MODEL), expected_digest=digest)
    assert rows() == before


def test_a_model_without_an_active_deployment_is_loaded_with_a_warning(db: None) -> None:
    unserved = MODEL.replace('engine = "sandbox"', 'engine = "sandbox"\nis_active = false')
    assert loading.load(file.parse(unserved)).lines == [
        "small: created (it has no deployment, so its requests are refused)"
    ]


# ---- mistakes


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("4096", "true", "models[0].max_output_tokens: must be a whole number, got true or false (line 5)"),
        (
            '"0.40"',
            '"-1"',
            "models[0].price.output_per_mtok: '-1' must be between 0 and 1000000 US dollars (line 8)",
        ),
        (
            "sandbox",
            "vllm",
            "models[0].deployments[0].engine: 'vllm' must be one of "
            "anthropic, openai_compatible, sandbox (line 10)",
        ),
        (
            '"sandbox"',
            '"anthropic"\nbase_url = "https://a.example/v1"\nupstream_model = "m"\nstreaming = "never"',
            "models[0].deployments[0].streaming: must not be 'never' for the engine 'anthropic' (line 13)",
        ),
        ("[[models.d", "[[models.x", "models[0]: unknown field x"),
        (
            '"sandbox"',
            '"sandbox"\nname = "\\u0000"',
            "models[0].deployments[0].name: must be text without a NUL character (line 11)",
        ),
        (
            '"sandbox"',
            '"sandbox"\napi_key_env = "CHATAPI_SECRET_KEY"',
            "must not be a variable of this server's own settings",
        ),
        (
            '"sandbox"',
            '"sandbox"\ntimeouts = { total_ms = 0 }',
            "timeouts.total_ms: must be a whole number >= 1 (line 11)",
        ),
        (
            '"sandbox"',
            f'"openai_compatible"\nbase_url = "http://{"h" * 129}"',
            "is too long to be a name: give its deployment one",
        ),
        ('"sandbox"', '"openai_compatible"\nbase_url = "http://a b/v1"', "must be a URL such as"),
        ('"sandbox"', "[" * 5_000, "it is nested too deeply"),
        ('"sandbox"', '"sandbox"\n"x - at `$a[" = 1', "models[0].deployments[0]: unknown field `x - at `$a["),
        ("[[models]]", '"x - at `$zzz" = 1\n[[models]]', "unknown field `x"),
    ],
)
def test_an_error_names_its_line(right: str, wrong: str, says: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011  the text is what matters
        file.parse(MODEL.replace(right, wrong, 1))
    assert says in str(error.value)


def test_no_setting_of_the_readme_or_of_traces_may_be_an_upstreams_key() -> None:
    names = {*README_SETTINGS, "OTEL_EXPORTER_OTLP_HEADERS"}
    assert sorted(name for name in names if not api_key_env_mistake(name)) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("models[1].price.output_per_mtok", 18),
        ("models[1].deployments[1].timeouts.total_ms", 25),
        ("models[0].deployments[7].weight", 2),
        ("models[0].context_window", 4),
        ("nothing", None),
        ("a[", None),
        ("", None),
    ],
)
def test_a_path_leads_to_its_line_or_to_the_table_around_it(path: str, line: int | None) -> None:
    text = (
        MODEL + MODEL.replace("small", "large") + '[[models.deployments]]\nengine = "sandbox"\nname = "b"\n'
        "[models.deployments.timeouts]\ntotal_ms = 5\n"
    )
    assert line_of(text, path) == line


def test_what_cannot_be_read_stops_only_itself(small: ServedModel, caplog: Any) -> None:
    from chatapi import catalog
    from chatapi.worker import deployments

    model = ServedModel.objects.create(id="other")
    Deployment.objects.create(model=model, name="broken", engine="sandbox", timeouts={"connect": "soon"})
    prices.change("other", PRICE)
    assert set(catalog.load()) == set(deployments.load()) == {"small"}
    assert "other by broken is left out: 'connect' is none of connect_ms" in caplog.text
