"""`manage.py createkey`: a key that works, shown once, for tenants old and new."""

import io
import json
import re
from pathlib import Path

import pytest
from django.core.management import BaseCommand, CommandError, call_command

from accounts.authentication import look_up
from accounts.models import APIKey, Organization, Project, RateLimit
from chatapi.management.commands.createkey import Command
from chatapi.models import ServedModel
from usage.models import BudgetLimit, Period

pytestmark = pytest.mark.django_db


def both(*arguments: str) -> tuple[str, str]:
    """Run the command, and return its output on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    call_command("createkey", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def createkey(*arguments: str) -> str:
    return both(*arguments)[0]


def test_it_prints_only_a_key_that_works_and_says_whose_it_is_beside_it() -> None:
    out, err = both("--organization", "Acme Inc", "--project", "chat", "--name", "backend")
    (key,), (answer,) = out.splitlines(), err.splitlines()
    caller = look_up(key)
    assert key.startswith("ck_live_")
    assert not caller.is_admin
    assert answer == "This live key 'backend' of Acme Inc / chat is shown only now. The organization is new."


def test_it_says_what_it_made_beside_the_key() -> None:
    """A mistyped name creates another tenant, so the output names the created rows."""
    words = ["--organization", "Acme", "--project"]
    said = [both(*words, project)[1].partition("now.")[2] for project in ("chat", "search", "search")]
    assert said == [" The organization is new.\n", " The project is new.\n", "\n"]


@pytest.mark.parametrize("owner", ["organization", "project"])
def test_it_says_when_a_key_of_an_inactive_owner_is_refused(owner: str) -> None:
    createkey("--organization", "Acme", "--project", "chat")
    rows = Organization.objects.all() if owner == "organization" else Project.objects.all()
    rows.update(is_active=False)
    for extra in ([], ["--json"]):
        _, err = both("--organization", "Acme", "--project", "chat", *extra)
        assert f"The {owner} is inactive: requests with this key are refused until it is active again." in err


def test_it_prints_one_json_object_when_asked() -> None:
    out, err = both("--organization", "Acme", "--json")
    made = json.loads(out)
    assert err == ""
    assert look_up(made["key"]).api_key_id == made["id"]
    assert set(made) == {"key", "id"}


def test_it_keeps_only_a_hash_of_the_key() -> None:
    key = createkey("--organization", "Acme").splitlines()[0]
    row = APIKey.objects.values().get()
    assert not any(isinstance(value, str) and (key in value or key[22:] in value) for value in row.values())


def test_test_and_admin_keys_are_such() -> None:
    caller = look_up(json.loads(createkey("--organization", "Acme", "--test", "--admin", "--json"))["key"])
    assert (caller.is_test, caller.is_admin) == (True, True)


def test_a_key_can_be_narrowed_to_scopes_and_models(small: ServedModel) -> None:
    words = [
        "--organization",
        "Acme",
        "--json",
        "--scope",
        "models",
        "--scope",
        "completions",
        "--scope",
        "models",
        "--model",
        "small",
    ]
    caller = look_up(json.loads(createkey(*words))["key"])
    assert (set(caller.scopes), set(caller.allowed_models)) == ({"models", "completions"}, {"small"})


def test_a_key_can_be_for_some_addresses_only(db: None) -> None:
    words = ["--organization", "Acme", "--json", "--allowed-ips"]
    caller = look_up(json.loads(createkey(*words, "203.0.113.7, 10.0.0.0/8"))["key"])
    assert [str(each) for each in caller.allowed_ips] == ["203.0.113.7/32", "10.0.0.0/8"]
    with pytest.raises(CommandError, match=r"^--allowed-ips: '10\.0\.0\.5/8' is an address inside a network"):
        createkey("--organization", "Umbrella", "--allowed-ips", "203.0.113.7,10.0.0.5/8")
    for empty in ("", " , "):
        with pytest.raises(CommandError, match=r"^--allowed-ips: the list is empty\."):
            createkey("--organization", "Umbrella", "--allowed-ips", empty)
    assert not Organization.objects.filter(name="Umbrella").exists()


def test_an_unknown_model_is_an_error_and_no_key_is_made(small: ServedModel) -> None:
    with pytest.raises(CommandError, match="there is no model 'smal'"):
        createkey("--organization", "Acme", "--model", "small", "--model", "smal")
    assert not Organization.objects.exists()


def test_what_no_model_can_be_called_is_refused(db: None) -> None:
    with pytest.raises(CommandError, match="not UTF-8 text"):
        createkey("--organization", "Acme", "--model", "\udcff")


def test_it_uses_the_organization_and_the_project_that_are_there() -> None:
    createkey("--organization", "Acme", "--project", "chat")
    createkey("--organization", "Acme", "--project", "chat")
    createkey("--organization", "Acme", "--project", "search")
    assert (Organization.objects.count(), Project.objects.count(), APIKey.objects.count()) == (1, 2, 3)


@pytest.mark.parametrize("option", ["--organization", "--project", "--name"])
@pytest.mark.parametrize("name", ["", " x", "a/b", "ü", "x" * 101, "a\nb"])
def test_a_name_that_is_not_allowed_is_refused_and_nothing_is_made(option: str, name: str) -> None:
    names = {"--organization": "Acme", option: name}
    with pytest.raises(CommandError, match=f"{option}: "):
        createkey(*(word for pair in names.items() for word in pair))
    assert not Organization.objects.exists()


LIMITED = ["--organization", "Acme", "--requests-per-minute", "60", "--tokens-per-minute", "9000"]
LIMITED += ["--concurrent", "5", "--tokens-per-day", "70000"]


@pytest.mark.parametrize(
    ("per", "period"),
    [("day", Period.DAY), ("week", Period.WEEK), ("month", Period.MONTH), ("total", Period.EVER)],
)
def test_a_key_can_have_limits_and_a_budget(per: str, period: Period) -> None:
    row = look_up(createkey(*LIMITED, "--budget-usd", "12.5", "--per", per).strip())
    limit = RateLimit.objects.get(api_key_id=row.api_key_id)
    assert (limit.requests_per_minute, limit.tokens_per_minute, limit.concurrent_requests) == (60, 9_000, 5)
    assert (limit.requests_per_day, limit.tokens_per_day) == (None, 70_000)
    budget = BudgetLimit.objects.get()
    assert (budget.scope, budget.scope_id, budget.period) == ("key", row.api_key_id, period)
    assert budget.limit_nanodollars == 12_500_000_000


def test_a_key_without_limits_has_no_rows_of_them() -> None:
    createkey("--organization", "Acme")
    assert (RateLimit.objects.exists(), BudgetLimit.objects.exists()) == (False, False)


@pytest.mark.parametrize(
    "words",
    [
        ["--budget-usd", "5"],
        ["--per", "day"],
        ["--budget-usd", "1e30", "--per", "day"],
        ["--budget-usd", "-5", "--per", "day"],
        ["--requests-per-minute", "0"],
        ["--requests-per-minute", "-1"],
        ["--requests-per-minute", "9" * 20],
        ["--concurrent", "1.5"],
    ],
    ids=" ".join,
)
def test_a_wrong_limit_makes_nothing(words: list[str]) -> None:
    with pytest.raises(CommandError):
        createkey("--organization", "Acme", *words)
    assert not Organization.objects.exists()


def test_the_readme_has_each_option() -> None:
    own, every = (
        {option for action in command.create_parser("manage.py", "createkey")._actions
         for option in action.option_strings}
        for command in (Command(), BaseCommand())
    )  # fmt: skip
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (row,) = re.findall(r"^\| `createkey (.*?)` \|", readme, re.MULTILINE)
    options = own - every
    assert {number.option for number in RateLimit.NUMBERS.values()} < options
    assert set(re.findall(r"--[\w-]+", row)) == options
