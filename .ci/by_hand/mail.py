"""docs/sign-in.md: a mail server, and a person who signs up and forgets the password."""

import email.policy
import re
from pathlib import Path
from urllib.parse import urlsplit

from by_hand.authority import make_server_certificate
from by_hand.clients import NGINX, new_browser, submit
from by_hand.documents import SIGN_IN
from by_hand.machine import PASSWORD, expect, run, wait_for
from by_hand.processes import change_settings, doctor, restart_webs, restart_workers

ADDRESS = "ada@globex.example"
MAILDIR = Path("/root/mail")


def set_up_mail() -> None:
    """Let a person sign up by mail, which goes out by STARTTLS and with a password."""
    run("apt-get install python3-aiosmtpd", online=True)
    settings = SIGN_IN.block("CHATAPI_EMAIL_URL=").replace("PASSWORD", PASSWORD)
    [url] = re.findall(r"(?m)^CHATAPI_EMAIL_URL=(.+)$", settings)
    server = urlsplit(url)
    certificate, key = make_server_certificate(str(server.hostname))
    program = Path(__file__).parent / "mail_server.py"
    run(
        "systemd-run --unit=mail-server "
        f"/usr/bin/python3 {program} {certificate} {key} {server.username} {server.password} {MAILDIR}"
    )
    change_settings(settings)
    restart_workers()
    restart_webs()
    expect(f"ok       mail          {server.hostname}", doctor())
    browser, _ = new_browser()
    submit(browser, browser.open(f"https://{NGINX.host}/console/sign-up", timeout=30), {"email": ADDRESS})
    form = browser.open(mailed_link("/console/sign-up/"), timeout=30)
    started = submit(browser, form, {"password": f"{PASSWORD}-ada", "name": "Globex"})
    expect("/start", started.url)
    visitor, _ = new_browser()
    page = visitor.open(f"https://{NGINX.host}/console/password/forgotten", timeout=30)
    submit(visitor, page, {"email": ADDRESS})
    expect("password", visitor.open(mailed_link("/console/password/"), timeout=30).read().decode())


def mailed_link(path: str) -> str:
    """Wait for a mail with a link to the path, and return the link."""
    wait_for(lambda: links_in_mail(path), f"a mail with a link to {path}")
    return links_in_mail(path)[0]


def links_in_mail(path: str) -> list[str]:
    """Return the links to the path in all mail to the person."""
    found: list[str] = []
    for file in MAILDIR.glob("new/*"):
        message = email.message_from_bytes(file.read_bytes(), policy=email.policy.default)
        text = message.get_body(("plain",))
        if text and ADDRESS in str(message["To"]):
            found += re.findall(rf"https://{NGINX.host}{path}\S+", text.get_content())
    return found
