"""docs/operations.md, "By hand, on Debian": from a bare Debian to a key."""

import re
from pathlib import Path

from by_hand.clients import KEY, NGINX, Site
from by_hand.documents import OPERATIONS
from by_hand.machine import PASSWORD, PROJECT, append, expect, replace_once, run, wait_for
from by_hand.processes import SETTINGS, run_with_settings, wait_for_processes

COPY = "/root/chatapi.git"


def install() -> None:
    """Install packages and the project, and create the role and the database."""
    Path("/etc/apt/apt.conf.d/yes").write_text('APT::Get::Assume-Yes "true";\n')
    commands = OPERATIONS.block("git clone YOUR-COPY").replace("YOUR-COPY", COPY)
    # createuser asks twice for the password.
    run(commands, folder="/root", answers=f"{PASSWORD}\n{PASSWORD}\n", online=True)


def set_up_redis() -> None:
    """Append the settings of Redis to its file, and check that they are in effect."""
    append("/etc/redis/redis.conf", OPERATIONS.block("maxmemory-policy"))
    run(OPERATIONS.quoted("systemctl restart redis-server"))
    expect("noeviction", run("redis-cli config get maxmemory-policy"))


def set_up_tables() -> None:
    """Write the settings; make the tables, an operator and the catalog."""
    run(OPERATIONS.quoted("install -d -m 700 /etc/chatapi"))
    settings = OPERATIONS.block("CHATAPI_KEY_PEPPER=").replace("PASSWORD", PASSWORD)
    random = OPERATIONS.quoted("openssl rand -hex 32")
    settings = re.sub("…", lambda _: run(random).strip(), settings)
    SETTINGS.write_text(settings)
    commands = OPERATIONS.block("manage.py createsuperuser\n")
    # Without a terminal, Django takes the answers from the environment.
    operator = f"DJANGO_SUPERUSER_USERNAME=op DJANGO_SUPERUSER_EMAIL= DJANGO_SUPERUSER_PASSWORD={PASSWORD}"
    commands = replace_once(commands, "createsuperuser", "createsuperuser --noinput")
    run_with_settings(f"export {operator}\n{commands}")


def start_processes() -> None:
    """Write the unit and the options of each process; start all."""
    Path("/etc/systemd/system/chatapi@.service").write_text(OPERATIONS.block("ExecStart="))
    run(OPERATIONS.block("systemctl enable --now chatapi@"))
    wait_for_processes()


def set_up_nginx() -> None:
    """Copy the example to nginx's folder, with the addresses here and a certificate."""
    make_certificate(NGINX)
    Path("/etc/nginx/conf.d/chatapi.conf").write_text(example_of("nginx/chatapi.conf"))
    main_file = Path("/etc/nginx/nginx.conf")
    before_events, in_events = OPERATIONS.block("worker_connections").splitlines()
    text = replace_once(main_file.read_text(), "\nevents {", f"\n{before_events}\nevents {{")
    main_file.write_text(replace_once(text, "worker_connections 768;", in_events))
    run(OPERATIONS.quoted("systemctl restart nginx"))


def make_certificate(site: Site) -> None:
    """Make a certificate of the site's name that signs itself."""
    run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={site.host} "
        f"-addext subjectAltName=DNS:{site.host} "
        f"-keyout {site.certificate.with_suffix('.key')} -out {site.certificate}"
    )


def example_of(name: str) -> str:
    """Return an example of deploy/ with the addresses of the web processes here."""
    text = (PROJECT / "deploy" / name).read_text()
    for written, ours in {"10.0.0.1:8000": "127.0.0.1:8001", "10.0.0.2:8000": "127.0.0.1:8002"}.items():
        text = replace_once(text, written, OPERATIONS.quoted(ours))
    return text


def make_key() -> None:
    """Make a key by the document's command, and store it for the other steps."""
    command = OPERATIONS.block("manage.py createkey").splitlines()[0]
    [key] = re.findall(r"ck_live_\w+", run_with_settings(command))
    KEY.write_text(key)


def read_the_journal() -> None:
    """Start a process whose port is taken, and check that the document's command shows the reason."""
    Path("/etc/chatapi/web3").write_text("OPTIONS=--only web --port 8001\n")
    run("systemctl start chatapi@web3")
    restarts = "systemctl show --value --property NRestarts chatapi@web3"
    wait_for(lambda: int(run(restarts)) > 0, "systemd to start the process again")
    command = OPERATIONS.quoted("journalctl -t python -u chatapi@web1").replace("web1", "web3")
    expect("port 8001 on 127.0.0.1 is in use", run(command).splitlines()[-1])
    run("systemctl stop chatapi@web3")
