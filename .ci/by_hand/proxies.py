"""docs/operations.md, "nginx and Caddy" and "Below a path": the other examples of deploy/."""

import json
import re
import urllib.error
from pathlib import Path

from by_hand.clients import KEY, NGINX, Site, load, new_browser, sign_in, stream, streams
from by_hand.documents import OPERATIONS
from by_hand.machine import expect, fail, replace_once, run, wait_for
from by_hand.processes import (
    SETTINGS,
    change_settings,
    doctor,
    restart_webs,
    restart_workers,
    run_with_settings,
)
from by_hand.setting_up import example_of, make_certificate

PREFIXED = Site("www.example.com", Path("/etc/ssl/www.example.com.pem"), "/llm", redirects=False)


def set_up_caddy() -> None:
    """Put Caddy in nginx's place, with a certificate of its own authority, and restart under load."""
    run(OPERATIONS.quoted("systemctl disable --now nginx"))
    run(OPERATIONS.quoted("apt-get install caddy"), online=True)
    example = example_of("caddy/Caddyfile")
    settings = set(settings_of(example).splitlines()) - set(SETTINGS.read_text().splitlines())
    if settings != {"CHATAPI_TRUSTED_PROXIES=<Caddy's address>"}:
        fail(f"deploy/caddy/Caddyfile has settings that docs/operations.md has not: {settings}")
    # What Debian's version needs.
    policy, pause = OPERATIONS.quoted("lb_policy random"), OPERATIONS.quoted("sleep 3")
    example = replace_once(example, OPERATIONS.quoted("lb_policy round_robin"), policy)
    site = f"{NGINX.host} {{\n"
    file = Path(OPERATIONS.quoted("/etc/caddy/Caddyfile"))
    file.write_text(replace_once(example, site, f"{site}\t{OPERATIONS.quoted('tls internal')}\n"))
    run(OPERATIONS.quoted("systemctl restart caddy"))
    folder = "/var/lib/caddy/.local/share/caddy/pki/authorities/local"
    caddy = Site(NGINX.host, Path(OPERATIONS.quoted(f"{folder}/root.crt")))
    wait_for(caddy.certificate.exists, "Caddy to make its authority")
    wait_for(lambda: streams(caddy), "Caddy to serve the site")
    stream(caddy)
    sign_in(caddy)
    expect_missing(caddy, "/metrics")
    doctor()
    with load(caddy):
        restart_workers()
        restart_webs(pause)
    run("systemctl disable --now caddy")


def settings_of(example: str) -> str:
    """Return the settings that the comment at the beginning of the example names, a line each."""
    comment = re.match(r"(#.*\n)+", example)
    assert comment
    return "".join(f"{each.strip()}\n" for each in re.findall(r"[A-Z_]+=(?:<.*?>|\S+)", comment[0]))


def expect_missing(site: Site, path: str) -> None:
    """Exit unless the site answers 404 for the path."""
    browser, _ = new_browser(site)
    try:
        browser.open(f"https://{site.host}{path}", timeout=30)
    except urllib.error.HTTPError as answer:
        if answer.code == 404:
            return
    fail(f"{path} is not a 404")


def serve_below_a_path() -> None:
    """Serve everything below /llm, and then at the root again."""
    before = SETTINGS.read_text()
    example = example_of("nginx/prefix.conf")
    settings = replace_once(settings_of(example), "<nginx's IP>", "127.0.0.1")
    change_settings(settings)
    make_certificate(PREFIXED)
    run("echo '127.0.0.1 www.example.com' >> /etc/hosts")
    run("mv /etc/nginx/conf.d/chatapi.conf /root/chatapi.conf")
    file = Path("/etc/nginx/conf.d/prefix.conf")
    file.write_text(example)
    run(f"systemctl enable nginx && {OPERATIONS.quoted('systemctl restart nginx')}")
    restart_workers()
    restart_webs()
    stream(PREFIXED)
    sign_in(PREFIXED)
    expect_missing(PREFIXED, "/llm/metrics")
    browser, _ = new_browser(PREFIXED)
    with browser.open(f"https://{PREFIXED.host}/llm/openapi.json", timeout=30) as answer:
        expect("/llm", json.dumps(json.load(answer)["servers"]))
    later = run(
        f"curl -sSi --cacert {PREFIXED.certificate} https://{PREFIXED.host}/llm/v1/chat/completions "
        f"-H 'Authorization: Bearer {KEY.read_text()}' -H 'Prefer: respond-async' "
        "-H 'Content-Type: application/json' "
        """-d '{"model": "sandbox", "stream": true, "messages": [{"role": "user", "content": "Hello!"}]}'"""
    )
    if not re.search(r"(?mi)^location: /llm/.*/generations/", later):
        fail(later)
    metrics = 'curl -sf http://127.0.0.1:8001/metrics -H "Authorization: Bearer $CHATAPI_METRICS_TOKEN"'
    expect("chatapi_requests_total", run_with_settings(metrics))
    doctor()
    SETTINGS.write_text(before)
    file.unlink()
    run("mv /root/chatapi.conf /etc/nginx/conf.d/chatapi.conf && systemctl restart nginx")
    restart_workers()
    restart_webs()
    stream()
