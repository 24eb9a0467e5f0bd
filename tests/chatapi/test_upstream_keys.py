"""API keys of upstreams that an operator enters in the admin: stored encrypted, used, and shown to nobody."""

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from pytest_django.fixtures import Settings

import chatapi.urls  # noqa: F401  it loads the admin's pages
from accounts import encryption
from accounts.audit.models import AuditEntry
from accounts.encryption import Purpose
from chatapi import upstream_keys
from chatapi.catalog import file, loading, writing
from chatapi.catalog.file import CatalogError
from chatapi.doctor import served_models as doctor
from chatapi.models import Deployment, ServedModel
from chatapi.worker import deployments
from tests.admin_pages import client_of, page, text
from tests.chatapi import test_catalog_deployments
from tests.chatapi.test_catalog_deployments import ADD

KEY = "sk-canary-upstream-key"
OTHER = "sk-canary-another-key"


def form(model: ServedModel, **changes: object) -> dict[str, object]:
    """Return the form of an active deployment as a browser sends it."""
    return test_catalog_deployments.form(model, **{"is_active": "on", **changes})


def words(response: Any) -> str:
    return text(response).replace("&#x27;", "'")


@pytest.fixture
def deployed(root: Client, small: ServedModel) -> Deployment:
    """Return a deployment whose key was entered in the admin."""
    assert root.post(ADD, form(small, api_key=f" {KEY} ")).status_code == 302
    return Deployment.objects.get(name="new")


def save(root: Client, row: Deployment, **changes: object) -> Any:
    """Send the form of an existing deployment."""
    return root.post(page(row), form(row.model, **changes))


def entered(row: Deployment) -> str | None:
    row.refresh_from_db()
    return upstream_keys.entered(row)


def test_an_entered_key_is_encrypted_and_a_worker_gets_it(deployed: Deployment) -> None:
    assert KEY.encode() not in bytes(deployed.encrypted_api_key or b"")
    targets = [route.target for route in deployments.load()["small"]]
    assert [(each.name, each.api_key) for each in targets] == [("new", KEY), ("sandbox", "")]
    assert KEY not in repr(deployments.load())


def test_an_empty_field_keeps_the_key_and_another_key_replaces_it(root: Client, deployed: Deployment) -> None:
    assert save(root, deployed, weight=2).status_code == 302
    assert (entered(deployed), deployed.weight) == (KEY, 2)
    assert save(root, deployed, api_key=OTHER).status_code == 302
    assert entered(deployed) == OTHER


def test_a_key_is_removed_alone_or_for_a_variable(root: Client, deployed: Deployment) -> None:
    assert save(root, deployed, removes_api_key="on").status_code == 302
    assert (entered(deployed), deployed.encrypted_api_key) == ("", None)
    save(root, deployed, api_key=KEY)
    assert save(root, deployed, removes_api_key="on", api_key_env="SOME_KEY").status_code == 302
    assert (entered(deployed), deployed.api_key_env) == ("", "SOME_KEY")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ({"api_key": OTHER, "api_key_env": "SOME_KEY"}, "only one of these"),
        ({"api_key": OTHER, "removes_api_key": "on"}, "only one of these"),
        ({"api_key_env": "SOME_KEY"}, "must be empty, because an API key was entered for this deployment"),
        ({"api_key": f"{OTHER} {OTHER}"}, "Use ASCII letters, digits and signs, without spaces."),
        ({"api_key": f"{OTHER}ü"}, "Use ASCII letters, digits and signs, without spaces."),
        ({"api_key": OTHER * 300}, "at most 4096 characters"),
        ({"api_key": OTHER, "weight": "0"}, "greater than or equal to 1"),
    ],
)
def test_what_can_not_be_is_refused_and_nothing_is_repeated(
    root: Client, deployed: Deployment, typed: Any, says: str
) -> None:
    shown = save(root, deployed, **typed).content.decode()
    assert says in shown
    assert "sk-canary" not in shown
    assert entered(deployed) == KEY


def test_no_page_no_file_and_no_audit_entry_has_the_key(
    root: Client, deployed: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    save(root, deployed, api_key=OTHER)
    save(root, deployed, removes_api_key="on")
    save(root, deployed, api_key=KEY)
    pages = [
        page(deployed),
        page(deployed.model),
        reverse("admin:chatapi_deployment_changelist"),
        reverse("admin:deployment_test", args=[deployed.pk]),
        reverse("admin:catalog_export"),
        reverse("admin:audit"),
    ]
    shown = [root.get(each).content.decode() for each in pages]
    call_command("exportcatalog")
    shown += [capsys.readouterr().out, str(AuditEntry.objects.values_list())]
    stored = bytes(Deployment.objects.get(pk=deployed.pk).encrypted_api_key or b"")
    assert not [each for each in shown if "sk-canary" in each or stored.hex() in each or repr(stored) in each]
    changes = [entry.changes.get("encrypted_api_key") for entry in AuditEntry.objects.order_by("id")]
    hidden = "(hidden)"
    assert [each for each in changes if each] == [
        [None, hidden], [hidden, hidden], [hidden, None], [None, hidden]
    ]  # fmt: skip


def test_the_form_never_has_a_value_and_no_browser_fills_it_in(root: Client, deployed: Deployment) -> None:
    shown = root.get(page(deployed)).content.decode()
    (field,) = re.findall(r'<input type="password"[^>]*>', shown)
    assert 'autocomplete="new-password"' in field
    assert "value" not in field
    assert "A key is stored. Leave this empty to keep it." in shown


def test_a_model_s_page_takes_the_key_of_a_new_deployment(root: Client, small: ServedModel) -> None:
    sent = {f"deployments-0-{name}": value for name, value in form(small, api_key=KEY).items()}
    counts = {"deployments-TOTAL_FORMS": 1, "deployments-INITIAL_FORMS": 0}
    model = {"id": "large", "kind": "chat", "context_window": 100, "max_output_tokens": 20, "owned_by": "me"}
    sent |= {**counts, **model, "is_active": "on", "deployments-0-is_active": "on"}
    del sent["deployments-0-model"]
    assert root.post(reverse("admin:chatapi_servedmodel_add"), sent).status_code == 302
    assert upstream_keys.entered(Deployment.objects.get(model="large")) == KEY


def test_people_without_the_permission_can_neither_read_nor_enter_one(
    deployed: Deployment, small: ServedModel
) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    nobody = client_of(clerk)
    assert [nobody.get(page(deployed)).status_code, nobody.post(page(deployed)).status_code] == [403, 403]
    clerk.user_permissions.add(Permission.objects.get(codename="view_deployment"))
    viewer = client_of(clerk)
    assert "sk-canary" not in text(viewer.get(page(deployed)))
    assert viewer.post(page(deployed), form(small, api_key=OTHER)).status_code == 403
    assert entered(deployed) == KEY


# ---- another secret, another row


def test_a_value_is_of_no_use_in_another_row_or_for_another_purpose(deployed: Deployment) -> None:
    stored = bytes(deployed.encrypted_api_key or b"")
    other = Deployment(pk=deployed.pk + 1, encrypted_api_key=stored)
    assert upstream_keys.entered(other) is None
    row = str(deployed.pk).encode()
    assert encryption.decrypt(Purpose.UPSTREAM_KEYS, row, stored) == KEY.encode()
    assert encryption.decrypt(Purpose.STORED_RESPONSES, row, stored) is None
    assert [encryption.decrypt(Purpose.UPSTREAM_KEYS, row, stored[:n]) for n in (0, 5, 12, 30)] == [None] * 4


def test_another_secret_key_is_said_in_a_line_and_mended_on_the_page(
    root: Client, deployed: Deployment, settings: Settings
) -> None:
    settings.SECRET_KEY = "another" * 10
    root.force_login(User.objects.get(username="root"))  # sessions end with the secret
    Deployment.objects.exclude(pk=deployed.pk).delete()
    assert deployments.load()["small"][0].target.api_key is None
    assert [each.text for each in doctor.check_keys()] == [f"small by new: {upstream_keys.LOST}"]
    assert list(doctor.check_upstreams()) == []
    assert "can't be decrypted" in words(root.get(reverse("admin:chatapi_deployment_changelist")))
    assert f"{upstream_keys.LOST} Enter it again." in words(root.get(page(deployed)))
    tried = words(root.post(reverse("admin:deployment_test", args=[deployed.pk])))
    assert re.search("can't be decrypted .* 502 upstream_credentials_missing", tried)
    saved = words(root.post(page(deployed), form(deployed.model), follow=True))
    assert f"Deployment new : {upstream_keys.LOST} Enter it again." in saved
    assert "is served" not in saved
    save(root, deployed, api_key=OTHER)
    assert (entered(deployed), list(doctor.check_keys())) == (OTHER, [])


# ---- files


def test_a_file_leaves_the_key_as_it_is(deployed: Deployment) -> None:
    exported = writing.write()
    assert "# Its API key was entered in the admin and is not in this file." in exported
    assert loading.load(file.parse(exported)).lines == ["small: unchanged"]
    loading.load(file.parse(exported.replace('"http://vllm:8000/v1"', '"http://vllm:8001/v1"')))
    assert (entered(deployed), deployed.base_url) == (KEY, "http://vllm:8001/v1")


def test_a_file_that_names_a_variable_beside_the_key_is_refused(deployed: Deployment) -> None:
    named = writing.write().replace(
        'base_url = "http://vllm', 'api_key_env = "SOME_KEY"\nbase_url = "http://vllm'
    )
    with pytest.raises(CatalogError, match=r"^small by new: must be empty, because an API key was entered"):
        loading.load(file.parse(named))
    assert (entered(deployed), deployed.api_key_env) == (KEY, "")


# ---- after saving


def saved(root: Client, model: ServedModel, **typed: object) -> str:
    return words(root.post(ADD, form(model, **typed), follow=True))


def test_saving_says_what_is_missing_until_the_model_is_served(root: Client) -> None:
    model = ServedModel.objects.create(id="org/bare")
    shown = saved(root, model, is_active="")
    assert re.search(r"org/bare is not served yet. Add an active deployment \. Set its price \.", shown)
    response = root.post(ADD, form(model, name="b"), follow=True)
    assert re.search(r"org/bare is not served yet. Set its price \.", text(response))
    url = "/admin/usage/price/add/?model=org%2Fbare"
    assert f'href="{url}"' in response.content.decode()
    price = dict.fromkeys(("input_per_mtok_nanodollars", "output_per_mtok_nanodollars"), "1")
    start = {"effective_from_0": "2026-01-01", "effective_from_1": "00:00:00"}
    priced = root.post(url, {"model": model.pk, **price, **start}, follow=True)
    assert "org/bare is served." in text(priced)


def test_saving_says_that_a_model_is_inactive(root: Client) -> None:
    model = ServedModel.objects.create(id="bare", is_active=False)
    assert "bare is not served yet. It is inactive. Set its price ." in saved(root, model)


def test_saving_says_which_variable_is_not_set(root: Client, small: ServedModel) -> None:
    shown = saved(root, small, api_key_env="NOT_SET_ANYWHERE")
    assert "Deployment new : NOT_SET_ANYWHERE is not set in this web process." in shown
    assert "small is served." in shown  # by the other one
    small.deployments.filter(name="sandbox").delete()
    assert "is served" not in saved(root, small, name="b", api_key_env="NOT_SET_ANYWHERE")
