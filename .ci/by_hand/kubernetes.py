"""deploy/kubernetes: each container's command as a process of systemd, with the environment, the user, the
limits, the probes and the grace period of its manifest. There is no cluster here: Services, autoscalers and
disruption budgets, the image and its registry are not tried.
"""

import re
import shlex
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from by_hand.authority import CERTIFICATE, make_server_certificate
from by_hand.clients import KEY, TOKEN_MS, begin_stream, read_stream
from by_hand.documents import KUBERNETES, OPERATIONS, ROOT
from by_hand.machine import PASSWORD, PROJECT, append, expect, fail, run, wait_for

FOLDER = ROOT / "deploy/kubernetes"
PODS = Path("/run/pods")
STREAM_S = 8
"""The length of the answers that run while a pod stops."""


@dataclass(frozen=True)
class Pod:
    """A pod of a Deployment or Job: the parts of its manifest that a process can have."""

    name: str
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        [container] = self.spec["containers"]
        return dict(container)

    @property
    def unit(self) -> str:
        return f"pod-{self.name}"

    @property
    def environment_file(self) -> Path:
        return PODS / f"{self.name}.env"

    def start(self, *options: str) -> str:
        """Start the container's command, restricted as in the pod."""
        rights, user = self.container["securityContext"], self.spec["securityContext"]
        properties = {
            "User": user["runAsUser"],
            "Group": user["runAsGroup"],
            "EnvironmentFile": self.environment_file,
            "WorkingDirectory": PROJECT,
            "ProtectSystem": "strict" if rights["readOnlyRootFilesystem"] else "no",
            "CapabilityBoundingSet": "" if rights["capabilities"]["drop"] == ["ALL"] else "~",
            "NoNewPrivileges": "no" if rights["allowPrivilegeEscalation"] else "yes",
            "MemoryMax": self.container["resources"]["limits"]["memory"].removesuffix("i"),
            "TimeoutStopSec": self.spec["terminationGracePeriodSeconds"],
            "KillMode": "mixed",  # SIGTERM to the first process only
        }
        words = [f"--property={name}={value}" for name, value in properties.items()]
        for mount in self.container["volumeMounts"]:
            volume = PODS / self.name / mount["name"]
            volume.mkdir(parents=True, exist_ok=True)
            run(f"mkdir -p {mount['mountPath']} && chown {user['runAsUser']}:{user['fsGroup']} {volume}")
            words.append(f"--property=BindPaths={volume}:{mount['mountPath']}")
        command = ["systemd-run", f"--unit={self.unit}", *options, *words, "env", *self.container["args"]]
        return run(shlex.join(command))

    def execute(self, command: list[str], *, answers: str = "") -> str:
        """Return the output of a command inside the running pod, as `kubectl exec` does."""
        return run(shlex.join(self.inside(command)), answers=answers)

    def inside(self, command: list[str]) -> list[str]:
        """Return the words that run a command with the pod's files, user and environment."""
        user = self.spec["securityContext"]
        pid = run(f"systemctl show --value --property MainPID {self.unit}").strip()
        words = ["nsenter", f"--target={pid}", "--mount", f"--wdns={PROJECT}"]
        words += ["setpriv", f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}"]
        environment = self.environment_file.read_text().replace('"', "").splitlines()
        return [*words, "--clear-groups", "env", "--ignore-environment", *environment, *command]

    def passes(self, probe: str) -> bool:
        """Return whether a probe of the manifest succeeds within its time."""
        how = self.container[probe]
        if "httpGet" in how:
            [port] = [
                each["containerPort"]
                for each in self.container["ports"]
                if each["name"] == how["httpGet"]["port"]
            ]
            url = f"http://127.0.0.1:{port}{how['httpGet']['path']}"
            try:
                with urllib.request.urlopen(url, timeout=how["timeoutSeconds"]) as answer:
                    return bool(200 <= answer.status < 400)
            except OSError:
                return False
        words = self.inside(how["exec"]["command"])
        return subprocess.run(words, timeout=how["timeoutSeconds"], check=False).returncode == 0

    def wait_until_ready(self) -> None:
        """Probe at the manifest's interval until the pod is ready, and check that it is alive."""
        while not self.passes("readinessProbe"):
            if run(f"systemctl is-active {self.unit} || true").strip() != "active":
                fail(run(f"journalctl --unit {self.unit} --no-pager"))
            time.sleep(self.container["readinessProbe"]["periodSeconds"])
        if not self.passes("livenessProbe"):
            fail(f"{self.name} is ready, but not alive")

    def stop_during(self, answers: list[str]) -> None:
        """Stop the pod with its grace period; exit unless it ends by itself, and the answer is whole."""
        began_at = time.monotonic()
        stopping = threading.Thread(target=run, args=(f"systemctl stop {self.unit}",))
        stopping.start()
        if "httpGet" in self.container["readinessProbe"]:
            wait_for(lambda: not self.passes("readinessProbe"), f"{self.name} to be unready", 3)
            if not self.passes("livenessProbe"):
                fail(f"{self.name} drains, and its liveness probe fails")
        stopping.join()
        took_s = time.monotonic() - began_at
        journal = run(f"journalctl --unit {self.unit} --no-pager --lines 20")
        if took_s >= self.spec["terminationGracePeriodSeconds"] or "Deactivated successfully" not in journal:
            fail(f"{self.name} has not ended by itself within {took_s:.0f} s\n{journal}")
        wait_for(lambda: answers, "the answer that ran meanwhile", STREAM_S + 5)
        expect("whole", answers[0])


def run_pods() -> None:
    """Run all pods against PostgreSQL and Redis with TLS, probe them, and stop them during answers."""
    run("systemctl stop 'chatapi@*' nginx")
    manifests = [
        each for file in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())
    ]
    sources = {
        (each["kind"], each["metadata"]["name"]): filled_in(each.get("data") or each["stringData"])
        for each in manifests
        if each["kind"] in {"ConfigMap", "Secret"}
    }
    secure_servers(sources["Secret", "chatapi"])
    PODS.mkdir()
    # The user of the image; systemd wants the pods' group to have a name.
    [add_user] = re.findall(r"(?m)^RUN (useradd .+)$", (PROJECT / "Dockerfile").read_text())
    run(f"{add_user} && groupadd --gid 10001 pods")
    pods = {}
    for each in manifests:
        if each["kind"] in {"Deployment", "Job"}:
            pod = Pod(each["metadata"]["name"], each["spec"]["template"]["spec"])
            pods[pod.name] = pod
            write_environment(pod, sources)
    pods["chatapi-migrate"].start("--wait", "--pipe")
    web, worker, reaper = (pods[f"chatapi-{role}"] for role in ("web", "worker", "reaper"))
    for pod in (worker, reaper, web):
        pod.start()
        pod.wait_until_ready()
    follow_kubectl(pods)
    metrics = sources["Secret", "chatapi"]["CHATAPI_METRICS_TOKEN"]
    [metric] = set(re.findall(r"metric: \{name: (\w+)\}", (FOLDER / "worker.yaml").read_text()))
    expect(
        f"\n{metric} ", run(f"curl -sf http://127.0.0.1:8000/metrics -H 'Authorization: Bearer {metrics}'")
    )
    worker.stop_during(begin_answer())
    worker_again = Pod("chatapi-worker", worker.spec)
    run(f"systemctl reset-failed {worker.unit} 2>/dev/null || true")
    worker_again.start()
    worker_again.wait_until_ready()
    web.stop_during(begin_answer())
    for pod in (worker_again, reaper):
        pod.stop_during(["whole"])


def filled_in(values: dict[str, str]) -> dict[str, str]:
    """Return settings with the reader's secrets."""
    made = ("CHATAPI_SECRET_KEY", "CHATAPI_KEY_PEPPER", "CHATAPI_METRICS_TOKEN")
    secret = OPERATIONS.quoted("openssl rand -hex 32")
    return {
        name: run(secret).strip() if name in made else value.replace("PASSWORD", PASSWORD)
        for name, value in values.items()
    }


def secure_servers(secrets: dict[str, str]) -> None:
    """Give PostgreSQL and Redis the names and certificates that the secrets' URLs want; make the database."""
    database, redis = urlsplit(secrets["DATABASE_URL"]), urlsplit(secrets["REDIS_URL"])
    certificate, key = make_server_certificate(str(database.hostname))
    run(f"install -o postgres -m 600 {key} /etc/postgresql/server.key")
    append(
        "/etc/postgresql/15/main/postgresql.conf",
        f"ssl_cert_file = '{certificate}'\nssl_key_file = '/etc/postgresql/server.key'\n",
    )
    run("systemctl restart postgresql")
    run("cd / && runuser -u postgres -- dropdb chatapi && runuser -u postgres -- createdb -O chatapi chatapi")
    certificate, key = make_server_certificate(str(redis.hostname))
    run(f"install -o redis -m 600 {key} /etc/redis/server.key")
    append(
        "/etc/redis/redis.conf",
        f"port 0\ntls-port {redis.port}\ntls-cert-file {certificate}\ntls-key-file /etc/redis/server.key\n"
        f"tls-ca-cert-file {CERTIFICATE}\ntls-auth-clients no\nrequirepass {PASSWORD}\n",
    )
    run("systemctl restart redis-server")


def write_environment(pod: Pod, sources: dict[tuple[str, str], dict[str, str]]) -> None:
    """Write the variables of the image, and of what the container's `envFrom` names."""
    image = "\n".join(re.findall(r"(?m)^ENV (.+)$", (PROJECT / "Dockerfile").read_text()))
    variables = dict(each.split("=", 1) for each in image.split())
    variables["PATH"] = variables["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")
    kinds = {"configMapRef": "ConfigMap", "secretRef": "Secret"}
    for each in pod.container["envFrom"]:
        [(reference, named)] = each.items()
        variables |= sources[kinds[reference], named["name"]]
    pod.environment_file.write_text("".join(f'{name}="{value}"\n' for name, value in variables.items()))


def follow_kubectl(pods: dict[str, Pod]) -> None:
    """Run the commands that the README gives to `kubectl exec`, in the processes of those pods."""
    text = KUBERNETES.block("manage.py doctor") + KUBERNETES.block("exec -it")
    said = {}
    for command in re.findall(r"(?m)^kubectl exec ((?:.*\\\n)*.*)$", text):
        target, _, words = command.replace("\\\n", " ").partition(" -- ")
        pod = pods[target.split("deploy/")[1]]
        words, _, file = words.partition(" < ")
        catalog = (PROJECT / "chatapi/catalog/sandbox.toml").read_text() if file else ""
        if "createsuperuser" in words:
            words = (
                "env DJANGO_SUPERUSER_USERNAME=op DJANGO_SUPERUSER_EMAIL= "
                f"DJANGO_SUPERUSER_PASSWORD={PASSWORD} {words} --noinput"
            )
        said[words] = pod.execute(shlex.split(words), answers=catalog)
    [key] = re.findall(r"ck_live_\w+", "".join(said.values()))
    KEY.write_text(key)


def begin_answer() -> list[str]:
    """Begin an answer from the web pod; return a list that gets "whole", or the error, when it has ended."""
    ended: list[str] = []
    answer = begin_stream(HTTPConnection("127.0.0.1", 8000, timeout=60), tokens=STREAM_S * 1000 // TOKEN_MS)

    def read() -> None:
        try:
            read_stream(answer)
            ended.append("whole")
        except (OSError, HTTPException, ValueError) as problem:
            ended.append(repr(problem))

    threading.Thread(target=read).start()
    return ended
