"""Other names of a model: of the installation in the catalog, of a project on its page."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client as Browser
from django.urls import reverse

from chatapi import catalog
from chatapi.catalog import file as catalog_file
from chatapi.catalog import loading, writing
from chatapi.models import Deployment, ServedModel
from tests.cast import Person
from usage.books import prices
from usage.pricing import FREE

MODEL = """
[[models]]
id = "{id}"
aliases = {aliases}
context_window = 8192
max_output_tokens = 4096
price = {{ input_per_mtok = "0.10", output_per_mtok = "0.40" }}
deployments = [{{ engine = "sandbox" }}]
"""

TAKEN = "is already the id or an alias of a model"
ALLOWED = "1 to 128 ASCII letters, digits or . _ : / @ + -"

pytestmark = pytest.mark.django_db


def load(**aliases: list[str]) -> list[str]:
    text = "".join(MODEL.format(id=id_, aliases=names) for id_, names in aliases.items())
    return loading.load(catalog_file.parse(text)).lines


@pytest.fixture
def root(db: None) -> Browser:
    browser = Browser()
    browser.force_login(User.objects.create_superuser("root"))
    return browser


def test_an_alias_means_its_model() -> None:
    load(small=["tiny", "org/tiny"])
    served = catalog.load()
    assert {name: model.id for name, model in served.items()} == dict.fromkeys(
        ["small", "tiny", "org/tiny"], "small"
    )
    assert load(small=["tiny"]) == ['small: changed: aliases ["tiny", "org/tiny"] -> ["tiny"]']
    assert set(catalog.load()) == {"small", "tiny"}


@pytest.mark.parametrize(
    ("aliases", "mistake"),
    [
        ({"a": ["a"]}, f"models[0].aliases: 'a' {TAKEN} (line 4)"),
        ({"a": ["b"], "b": []}, f"models[0].aliases: 'b' {TAKEN} (line 4)"),
        ({"a": ["x"], "b": ["x"]}, f"models[1].aliases: 'x' {TAKEN} (line 12)"),
        ({"a": ["x", "x"]}, f"models[0].aliases: 'x' {TAKEN} (line 4)"),
        ({"a": ["x y"]}, f"models[0].aliases[0]: must be {ALLOWED} (line 4)"),
        ({"a": [f"x{n}" for n in range(101)]}, "models[0].aliases: must be a list of length <= 100 (line 4)"),
    ],
)
def test_an_alias_that_is_another_name_is_refused(aliases: dict[str, list[str]], mistake: str) -> None:
    with pytest.raises(ValueError, match="models") as error:
        load(**aliases)
    assert str(error.value) == mistake
    assert not ServedModel.objects.exists()


def test_names_of_models_that_the_file_does_not_have_count_too() -> None:
    load(small=["tiny"])
    clashes: list[dict[str, list[str]]] = [{"large": ["small"]}, {"large": ["tiny"]}, {"tiny": []}]
    for clash in clashes:
        with pytest.raises(catalog_file.CatalogError, match="is already the id or an alias of a model"):
            load(**clash)
    load(small=[], large=["tiny"])  # an alias may move within one file
    assert catalog.load()["tiny"].id == "large"


def test_a_written_catalog_has_aliases_and_days(tmp_path: Path) -> None:
    load(small=["tiny"])
    ServedModel.objects.update(deprecated_on=date(2027, 1, 2))
    (model,) = catalog_file.parse(writing.write()).models
    assert (model.aliases, model.deprecated_on) == (["tiny"], date(2027, 1, 2))


FORM = {"kind": "chat", "context_window": 10, "max_output_tokens": 5, "owned_by": "me", "is_active": "on"}
FORM |= {f"deployments-{name}_FORMS": 0 for name in ("TOTAL", "INITIAL", "MIN_NUM", "MAX_NUM")}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"id": "new", "aliases": "x y"}, None),
        ({"id": "new", "aliases": "small"}, "&#x27;small&#x27; is already the id or an alias"),
        ({"id": "new", "aliases": "tiny"}, "&#x27;tiny&#x27; is already the id or an alias"),
        ({"id": "new", "aliases": "new"}, "&#x27;new&#x27; is already the id or an alias"),
        ({"id": "new", "aliases": "ü"}, "is no name of a model"),
        ({"id": "tiny", "aliases": ""}, "is already the id or an alias"),
    ],
)
def test_the_page_of_a_model_refuses_the_same(root: Browser, values: Any, problem: str | None) -> None:
    load(small=["tiny"])
    page = root.post(reverse("admin:chatapi_servedmodel_add"), FORM | values)
    if problem is None:
        assert ServedModel.objects.get(pk="new").aliases == ["x", "y"]
        assert 'value="x y"' in root.get(reverse("admin:chatapi_servedmodel_change", args=["new"])).text
    else:
        assert problem in page.text
        assert ServedModel.objects.count() == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("claude-haiku-4-5 = small\n\n gpt-5.6=small", None),
        ("", None),
        ("small", "“small” has no “=”. Write each line like “"),
        ("small = small", "is already the id or an alias"),
        ("tiny = small", "is already the id or an alias"),
        ("mine = small\nmine = small", "is already the id or an alias"),
        ("mine = unknown", "There is no model with the id &#x27;unknown&#x27;"),
        ("mine = tiny", "There is no model with the id &#x27;tiny&#x27;"),
        ("my name = small", "is no name of a model"),
    ],
)
def test_the_page_of_a_project_has_its_aliases(
    root: Browser, alice: Person, text: str, problem: str | None
) -> None:
    load(small=["tiny"])
    url = reverse("admin:accounts_project_change", args=[alice.project.pk])
    page = root.post(url, {"name": "research", "is_active": "on", "model_aliases": text})
    alice.project.refresh_from_db()
    if problem is None:
        expected = {"claude-haiku-4-5": "small", "gpt-5.6": "small"} if text else {}
        assert alice.project.model_aliases == alice.caller.model_aliases == expected
        assert ("claude-haiku-4-5 = small" in root.get(url).text) == bool(text)
    else:
        assert problem in page.text
        assert alice.project.model_aliases == {}


def test_the_list_of_models_has_all_names_that_the_key_may_send(alice: Person, charlie: Person) -> None:
    load(small=["tiny"], large=["huge"])
    alice.project.model_aliases = {"mine": "small", "gone": "retired"}
    alice.project.save()
    listed = alice.get("/v1/models").json()["data"]
    assert {model["id"]: model.get("alias_of") for model in listed} == {
        "huge": "large", "large": None, "mine": "small", "small": None, "tiny": "small"
    }  # fmt: skip
    assert alice.get("/v1/models/mine").json()["alias_of"] == "small"
    assert "mine" not in {model["id"] for model in charlie.get("/v1/models").json()["data"]}
    assert charlie.get("/v1/models/mine").status_code == 404
    alice.api_key.allowed_models = ["large", "tiny"]  # restrictions name models, not aliases
    alice.api_key.save()
    assert [model["id"] for model in alice.get("/v1/models").json()["data"]] == ["huge", "large"]


def test_a_projects_alias_stays_when_the_catalog_gets_a_model_of_that_name(alice: Person) -> None:
    load(small=[])
    alice.project.model_aliases = {"mine": "small"}
    alice.project.save()
    Deployment.objects.create(model=ServedModel.objects.create(pk="mine"), name="sandbox", engine="sandbox")
    prices.change("mine", FREE)
    assert alice.get("/v1/models/mine").json()["alias_of"] == "small"
