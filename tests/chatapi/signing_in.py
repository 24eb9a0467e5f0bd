"""Visitors of the sign-in pages: what they send, and what they find in their mail."""

import re
from typing import Any

from allauth.account.models import EmailAddress
from django.contrib.auth.models import User
from django.test import Client

from tests.cast import Person

PASSWORD = "correct horse battery"
ANOTHER = {"new_password1": "another horse battery", "new_password2": "another horse battery"}
SIGN_IN = "/console/sign-in"


def sign_in(client: Client, name: str, password: str = PASSWORD, **sent: str) -> Any:
    """Return the answer to name and password."""
    return client.post(SIGN_IN, {"username": name, "password": password, **sent})


def with_password(user: User, **changes: str) -> User:
    """Set the person's password and fields, and return the person."""
    for name, value in changes.items():
        setattr(user, name, value)
    user.set_password(PASSWORD)
    user.save()
    return user


def confirmed(person: Person, address: str) -> User:
    """Give the person a password and this confirmed address."""
    EmailAddress.objects.create(user=person.user, email=address, verified=True, primary=True)
    return with_password(person.user, email=address)


def who(client: Client) -> str:
    """Return the name of the person that the client is signed in as, or ""."""
    user_id = client.session.get("_auth_user_id")
    return User.objects.get(pk=user_id).get_username() if user_id else ""


def link_in(mail: Any) -> str:
    """Return the path of the only link in a mail."""
    (path,) = re.findall(r"http://testserver(/\S+)", str(mail.body))
    return str(path)


def choose(client: Client, link: str) -> None:
    """Choose another password at a link."""
    client.post(client.get(link, follow=True).redirect_chain[-1][0], ANOTHER)
