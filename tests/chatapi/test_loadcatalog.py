"""`manage.py loadcatalog`: all of a file or nothing of it, in words, and as often as one likes."""

import io
import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import connections

from chatapi import catalog
from chatapi.catalog import file as catalog_file
from chatapi.catalog import loading
from chatapi.models import Deployment, ServedModel
from chatapi.serving import first_start
from chatapi.worker.engines.sandbox.script import BEHAVIOURS
from tests import locked_database
from usage.models import Price

EXAMPLE = Path(__file__).parents[2] / "docs" / "catalog.example.toml"
MODEL = """
[[models]]
id = "small"
context_window = 8192
max_output_tokens = 4096
[models.price]
input_per_mtok = "0.10"
output_per_mtok = "0.40"
[[models.deployments]]
engine = "openai_compatible"
base_url = "http://127.0.0.1:8080/v1"
"""

pytestmark = pytest.mark.django_db
Load = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a TOML text; what the command printed, line by line."""

    def load(text: str, *options: str) -> list[str]:
        path, out = tmp_path / "catalog.toml", io.StringIO()
        path.write_text(text)
        call_command("loadcatalog", str(path), *options, stdout=out)
        return out.getvalue().splitlines()

    return load


def test_it_loads_a_model_that_is_then_served(load: Load) -> None:
    assert load(MODEL) == ["small: created"]
    served = catalog.load()["small"]
    assert (served.context_window, served.max_output_tokens) == (8192, 4096)
    assert served.price is not None
    assert (
        served.price.input_per_mtok_nanodollars
        == served.price.cached_input_per_mtok_nanodollars
        == 100_000_000
    )
    assert Deployment.objects.get().name == "127.0.0.1:8080"


def test_a_model_keeps_its_kind(load: Load) -> None:
    embeddings = MODEL.replace("context_window", 'kind = "embeddings"\ncontext_window')
    load(embeddings)
    assert catalog.load()["small"].kind == "embeddings"
    assert load(embeddings) == ["small: unchanged"]
    with pytest.raises(CommandError, match="small: its kind stays 'embeddings'"):
        load(MODEL)
    with pytest.raises(CommandError, match=r"models\[0\].kind: must be one of chat, embeddings"):
        load(embeddings.replace('"embeddings"', '"rerank"'))


@pytest.mark.parametrize("name", ["127.0.0.1:8080", "127.0.0.1:8080-2", "sandbox"])
def test_a_given_name_takes_no_deployment_its_own(load: Load, name: str) -> None:
    unnamed = (
        '[[models.deployments]]\nengine = "sandbox"\n'
        '[[models.deployments]]\nengine = "openai_compatible"\nbase_url = "http://127.0.0.1:8080/v2"\n'
    )
    load(
        MODEL
        + unnamed
        + f'[[models.deployments]]\nname = "{name}"\n'
        + 'engine = "openai_compatible"\nbase_url = "http://10.0.0.1/v1"\n'
    )
    assert Deployment.objects.count() == 4
    assert Deployment.objects.get(name=name).base_url == "http://10.0.0.1/v1"


@pytest.mark.django_db(transaction=True)
def test_two_loads_at_once_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second load plans after the first has ended, and notices that its plan has changed."""
    first, second = (
        catalog_file.parse(MODEL.replace("8192", str(window)).replace("0.10", f"0.{cents}"))
        for window, cents in ((9000, 20), (8192, 30))
    )
    loading.load(catalog_file.parse(MODEL.replace("8192", "9999")))
    agreed, makes_plans, plan = loading.plan(second).digest, threading.Event(), loading.plan
    others: list[Future[loading.Plan]] = []

    def plan_slowly(read: catalog_file.Catalog, **options: bool) -> loading.Plan:
        if read is second:
            makes_plans.set()
        made = plan(read, **options)
        if read is first:
            others.append(threads.submit(load_second))
            makes_plans.wait(0.5)
        return made

    def load_second() -> loading.Plan:
        try:
            return loading.load(second, expected_digest=agreed)
        finally:
            connections.close_all()

    monkeypatch.setattr(loading, "plan", plan_slowly)
    with ThreadPoolExecutor(1) as threads:
        loading.load(first)
        with pytest.raises(loading.CatalogChanged):
            others[0].result()
    assert ServedModel.objects.get().context_window == 9000


@pytest.mark.django_db(transaction=True)
def test_a_load_keeps_the_key_that_an_operator_enters_meanwhile(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(MODEL)
    plan = loading.plan

    def enter_key() -> None:
        try:
            Deployment.objects.update(encrypted_api_key=b"entered")
        finally:
            connections.close_all()

    def plan_beside_an_operator(read: catalog_file.Catalog, **options: bool) -> loading.Plan:
        made = plan(read, **options)
        wait([threads.submit(enter_key)], timeout=0.3)
        return made

    monkeypatch.setattr(loading, "plan", plan_beside_an_operator)
    with ThreadPoolExecutor(1) as threads:
        loading.load(catalog_file.parse(MODEL.replace("http://", "https://")))
    assert {bytes(row.encrypted_api_key or b"") for row in Deployment.objects.all()} == {b"entered"}


@pytest.mark.django_db(transaction=True)
def test_a_second_load_gives_up_after_a_while(load: Load) -> None:
    load(MODEL)
    answer = pytest.raises(
        CommandError,
        match=r"^Someone else is changing the catalog, and nothing is loaded\. Try again in a moment\.$",
    )
    with locked_database.impatient(), locked_database.locked("chatapi_servedmodel"), answer:
        load(MODEL.replace("8192", "9000"))
    assert ServedModel.objects.get().context_window == 8192
    assert load(MODEL) == ["small: unchanged"]


def test_it_says_which_keys_are_not_set_where_it_runs(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MODEL + 'api_key_env = "SMALL_KEY"\n'
    monkeypatch.setenv("SMALL_KEY", "sk-small")
    assert load(text) == ["small: created"]
    monkeypatch.setenv("SMALL_KEY", " ")
    assert load(text) == [
        "small: unchanged",
        "Not set in this environment: SMALL_KEY. "
        "Workers need these variables to call the deployments: set them, and restart the workers.",
    ]


def test_loading_it_again_changes_nothing(load: Load) -> None:
    load(MODEL)
    assert load(MODEL) == ["small: unchanged"]
    assert Price.objects.count() == Deployment.objects.count() == 1


def test_it_says_what_changed(load: Load) -> None:
    load(MODEL)
    changed = (
        MODEL.replace("8192", "16384").replace('"0.40"', '"0.50"')
        + "weight = 3\ntimeouts = { connect_ms = 100 }\n"
    )
    assert load(changed) == [
        "small: changed: context_window 8192 -> 16384; "
        "deployment 127.0.0.1:8080 weight 1 -> 3; "
        'deployment 127.0.0.1:8080 timeouts {} -> {"connect_ms": 100}; '
        "price output_per_mtok 0.4 -> 0.5"
    ]


def test_a_changed_price_is_a_new_row_from_now_on(load: Load) -> None:
    load(MODEL)
    load(MODEL.replace('"0.40"', '"0.50"'))
    new, old = Price.objects.filter(model="small")
    assert new.effective_from > old.effective_from
    assert (new.output_per_mtok_nanodollars, old.output_per_mtok_nanodollars) == (500_000_000, 400_000_000)


def test_a_deployment_that_left_the_file_is_deactivated_and_can_return(load: Load) -> None:
    second = '[[models.deployments]]\nengine = "sandbox"\n'
    load(MODEL + second)
    assert load(MODEL) == ["small: changed: deployment sandbox deactivated"]
    assert load(MODEL) == ["small: unchanged"]
    assert load(MODEL + second) == ["small: changed: deployment sandbox is_active false -> true"]


def test_models_that_the_file_lacks_are_left_alone_and_listed(load: Load) -> None:
    load(MODEL)
    assert load(MODEL.replace("small", "large")) == [
        "large: created",
        "Not in the file, left as they are: small. --deactivate-missing stops serving them.",
    ]
    assert set(catalog.load()) == {"small", "large"}


def test_models_that_the_file_lacks_are_deactivated_when_asked(load: Load) -> None:
    load(MODEL)
    load(MODEL.replace("small", "large"), "--deactivate-missing")
    assert set(catalog.load()) == {"large"}
    assert load(MODEL)[0] == "small: changed: is_active false -> true"


def test_a_model_without_a_price_is_loaded_with_a_warning(load: Load) -> None:
    unpriced = MODEL.replace("[models.price]\n", "").replace(
        'input_per_mtok = "0.10"\noutput_per_mtok = "0.40"\n', ""
    )
    assert load(unpriced) == ["small: created (it has no price, so its requests are refused)"]
    assert catalog.load()["small"].price is None


def test_deployments_of_the_same_host_get_names_of_their_own(load: Load) -> None:
    deployment = MODEL[MODEL.index("[[models.deployments]]") :]
    load(MODEL + deployment + deployment)
    assert sorted(Deployment.objects.values_list("name", flat=True)) == [
        "127.0.0.1:8080",
        "127.0.0.1:8080-2",
        "127.0.0.1:8080-3",
    ]


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (
            '"0.10"',
            "0.10",
            "models[0].price.input_per_mtok: must be text in quotes, got a number without quotes",
        ),
        ('"0.10"', '"-1"', "models[0].price.input_per_mtok: '-1' must be between 0 and"),
        ('"0.40"', '"NaN"', "models[0].price.output_per_mtok: "),
        ("8192", '"8192"', "models[0].context_window: must be a whole number, got text in quotes"),
        ("4096", "9000", "models[0].max_output_tokens: must be at most context_window, 8192"),
        ("context_window", "context", "models[0]: unknown field context; allowed are id, context_window,"),
        ("context_window = 8192", "", "models[0]: lacks context_window"),
        ('"small"', '"s mall"', "models[0].id: must be 1 to 128 ASCII letters, digits or"),
        (
            "openai_compatible",
            "vllm",
            "models[0].deployments[0].engine: 'vllm' must be one of anthropic, openai_compatible, sandbox",
        ),
        (
            "http://",
            "ftp://",
            "models[0].deployments[0].base_url: 'ftp://127.0.0.1:8080/v1' must be a URL such as",
        ),
        ("http://", "http://user:secret@", "models[0].deployments[0].base_url: must have no user, password,"),
        ("/v1", "/v1?key=secret", "models[0].deployments[0].base_url: must have no user, password, query"),
        (
            '"openai_compatible"',
            '"sandbox"',
            "models[0].deployments[0].base_url: the sandbox engine has none",
        ),
        (
            "[[models.deployments]]",
            "[[models.deployments]]\nweight = 0",
            "models[0].deployments[0].weight: must be a whole number >= 1",
        ),
        (
            "[[models.deployments]]",
            "[[models.deployments]]\nretries = 11",
            "models[0].deployments[0].retries: must be a whole number <= 10",
        ),
        (
            "[[models.deployments]]",
            '[[models.deployments]]\non_disconnect = "run"',
            "models[0].deployments[0].on_disconnect: must be one of cancel, drain, continue",
        ),
        (
            "[[models.deployments]]",
            '[[models.deployments]]\nstreaming = "off"',
            "models[0].deployments[0].streaming: must be one of always, without_logprobs, as_requested, "
            "never",
        ),
        (
            "[[models.deployments]]",
            '[[models.deployments]]\napi_key_env = "sk-123"',
            "models[0].deployments[0].api_key_env: must be the name of an environment variable",
        ),
        (
            "[[models.deployments]]",
            "[[models.deployments]]\ntimeouts = { connect = 1 }",
            "models[0].deployments[0].timeouts: unknown field connect; allowed are connect_ms,",
        ),
        (
            "[[models.deployments]]",
            '[[models.deployments]]\nextra_parameters = ["top_k", "api_key"]',
            "models[0].deployments[0].extra_parameters: "
            "'api_key' is none of the engine parameters that can be passed on",
        ),
        (
            "[[models.deployments]]",
            '[[models.deployments]]\nallow_remote_media = "yes"',
            "models[0].deployments[0].allow_remote_media: must be true or false, got text in quotes",
        ),
        ("[[models]]", "[models]", "models: must be a list, got a table"),
        ('"small"', '"small', "Illegal character '\\n' (at line 3, column 12)"),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_nothing_is_loaded(
    load: Load, right: str, wrong: str, says: str
) -> None:
    with pytest.raises(CommandError) as error:
        load(MODEL.replace(right, wrong, 1))
    assert f"catalog.toml: {says}" in str(error.value)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)
    assert not ServedModel.objects.exists()


def test_a_mistake_in_a_later_model_loads_nothing_of_the_file(load: Load) -> None:
    with pytest.raises(CommandError, match=r"models\[1\]\.id: 'small' is in the file twice"):
        load(MODEL + MODEL)
    assert not ServedModel.objects.exists()


def test_a_file_that_is_not_there_is_one_line() -> None:
    with pytest.raises(CommandError, match=r"^nowhere\.toml: can't be read: No such file or directory$"):
        call_command("loadcatalog", "nowhere.toml")


SECOND = '[[models.deployments]]\nengine = "sandbox"\n'
EXTRAS = ('extra_parameters = ["top_k", "min_p"]\n', 'extra_parameters = ["min_p", "grammar"]\n')


def test_a_model_takes_the_parameters_that_all_its_deployments_take(load: Load) -> None:
    load(MODEL + EXTRAS[0])
    assert catalog.load()["small"].extra_parameters == {"top_k", "min_p"}
    load(MODEL + EXTRAS[0] + SECOND + EXTRAS[1])
    assert catalog.load()["small"].extra_parameters == {"min_p"}
    load(MODEL + EXTRAS[0] + SECOND)
    assert catalog.load()["small"].extra_parameters == frozenset()


def test_remote_media_are_allowed_when_all_deployments_allow_them(load: Load) -> None:
    allowed = "allow_remote_media = true\n"
    load(MODEL)
    assert not catalog.load()["small"].remote_media_allowed
    assert load(MODEL + allowed) == [
        "small: changed: deployment 127.0.0.1:8080 allow_remote_media false -> true"
    ]
    assert catalog.load()["small"].remote_media_allowed
    load(MODEL + allowed + SECOND)
    assert not catalog.load()["small"].remote_media_allowed
    load(MODEL + allowed)  # the second one is not active any more, and does not count
    assert catalog.load()["small"].remote_media_allowed


def test_a_deployment_s_row_is_checked_as_the_file_is() -> None:
    model = ServedModel.objects.create(id="m")
    row = Deployment(model=model, name="one", engine="sandbox")
    row.full_clean()
    for wrong in (["api_key"], ["top_k", 5], [["top_k"]], "top_k", {"top_k": 1}):
        row.extra_parameters = wrong
        with pytest.raises(ValidationError, match="extra_parameters"):
            row.full_clean()


def test_the_example_loads_and_shows_every_key() -> None:
    call_command("loadcatalog", str(EXAMPLE), stdout=io.StringIO())
    assert all(model.price is not None for model in catalog.load().values())
    models = tomllib.loads(EXAMPLE.read_text())["models"]
    shown = {key for model in models for key in model}
    assert shown == set(catalog_file.Model.__struct_fields__)
    assert {key for model in models for key in model["price"]} == set(catalog_file.Price.__struct_fields__)
    assert {key for model in models for one in model["deployments"] for key in one} == set(
        catalog_file.Deployment.__struct_fields__
    )


def test_the_first_start_loads_every_behaviour_of_the_sandbox() -> None:
    call_command("loadcatalog", str(first_start.SANDBOX_CATALOG), stdout=io.StringIO())
    assert set(catalog.load()) == {*BEHAVIOURS, "sandbox-embedding"}
    prices = {name: model.price for name, model in catalog.load().items()}
    assert all(price and price.input_per_mtok_nanodollars for price in prices.values())
