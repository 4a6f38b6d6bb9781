"""The collection in use: Ansible makes a portal and two appliances of Debian machines, over SSH.

The machines have a network of their own. The portal has MariaDB, VictoriaMetrics, nginx and TLS by
its own CA. The tests share the machines, in the order of an operator's work.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.fixtures.debian import (
    CACHE,
    PYTHON,
    USER,
    Machine,
    debian_machines,
    make_release,
    server_packages,
)
from tests.fixtures.polling import eventually
from tests.integration.test_install_in_debian import rebuild_agent

pytestmark = [pytest.mark.nightly, pytest.mark.needs_root, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
APPLIANCES = ["dgx-01", "dgx-02"]
ALICE, PASSWORD = "alice@acme.example", "correct-horse-1"
SECRETS = {
    "vedette_portal_database_password": "p'a\"ss%w@rd/1",
    "vedette_portal_proxy_secret": "a secret of nginx",
}
PLUGINS = {
    "disk": {"interval_seconds": 60, "skip_mounts": ['/mnt/"größe"\\*']},
    "exec": {"programs": [{"command": ["/opt/ups", "--once"], "environment": {"UPS": "a, {b}"}}]},
}


@dataclass(frozen=True, slots=True)
class Site:
    """The controller's folder, and the machines that it reaches."""

    folder: Path
    machines: dict[str, Machine]

    @property
    def url(self) -> str:
        return f"https://{self.machines['portal-1'].address}"

    @property
    def wheelhouse(self) -> Path:
        return self.machines["portal-1"].root / "var" / "lib" / "vedette-server" / "wheelhouse"

    def play(self, name: str, *options: str, **variables: object) -> "Played":
        """Run a playbook of the collection; `variables` win over the inventory's."""
        extra = ["--extra-vars", json.dumps(variables)] if variables else []
        return Played(
            self.program("ansible-playbook", f"vedette.platform.{name}", *extra, *options)
        )

    def program(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of Ansible on both inventories, as far as they exist."""
        inventories = [str(path) for path in self.folder.glob("*vedette.*")]
        return subprocess.run(
            [str(Path(sys.executable).with_name(name))]
            + [argument for path in inventories for argument in ("--inventory", path)]
            + list(arguments),
            cwd=self.folder,
            env=self.environ(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=900,
            check=False,
        )

    def environ(self) -> dict[str, str]:
        token = self.folder / "token"
        return os.environ | {
            "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
            "ANSIBLE_HOME": str(self.folder / "home"),
            "ANSIBLE_HOST_KEY_CHECKING": "False",
            "ANSIBLE_PIPELINING": "True",
            "LC_ALL": "C.UTF-8",
            "VEDETTE_TOKEN": token.read_text() if token.exists() else "",
        }

    def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """Return what the portal answers alice."""
        reply = requests.request(
            method,
            f"{self.url}/api/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.environ()['VEDETTE_TOKEN']}"},
            verify=str(self.folder / "ca.pem"),
            timeout=60,
        )
        assert reply.ok, reply.text
        return dict(reply.json())

    def states(self) -> dict[str, str]:
        """Return the state of each appliance."""
        page = self.ask("GET", "/appliances")
        return {item["name"]: item["state"] for item in page["items"]}  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Played:
    """What a playbook did."""

    ended: subprocess.CompletedProcess[str]

    @property
    def output(self) -> str:
        return self.ended.stdout + self.ended.stderr

    @property
    def changes(self) -> dict[str, int]:
        """The number of changes by host; fails if a task failed."""
        assert self.ended.returncode == 0, self.output[-6000:]
        recap = re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", self.ended.stdout, re.MULTILINE)
        return {host: int(count) for host, count in recap}


@dataclass(frozen=True, slots=True)
class Installed:
    """A site after the first run, and what each playbook said."""

    site: Site
    portal_check: Played
    portal: Played
    agents_check: Played
    agents: Played
    enrollment_token: str


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if sys.version_info[:2] != PYTHON:
        pytest.skip("the packages of this Python don't fit that of the machines")
    folder = tmp_path_factory.mktemp("site")
    install_collection(folder)
    release = make_release(folder / "release")
    with debian_machines(folder, ["portal-1", *APPLIANCES], shared=CACHE) as machines:
        made = Site(folder, machines)
        inventory = json.dumps({"all": {"children": inventory_of(made, release)}})
        (folder / "vedette.json").write_text(inventory, encoding="utf-8")
        yield made


@pytest.fixture(scope="module")
def installed(site: Site) -> Installed:
    portal_check = site.play("portal", "--check", "--diff")
    untouched = site.machines["portal-1"].run("ls /opt /etc/vedette")
    assert "vedette" not in untouched.stdout
    portal = site.play("portal", "--diff", "-vvv")
    assert portal.changes
    add_alice(site)
    secret = str(site.ask("POST", "/enrollment-tokens", {"site": "delft", "uses": 2})["token"])
    agents_check = site.play("agents", "--check", vedette_agent_enrollment_token=secret)
    assert "vedette" not in site.machines["dgx-01"].run("ls /opt; getent passwd vedette").stdout
    agents = site.play("agents", "--diff", "-vvv", vedette_agent_enrollment_token=secret)
    assert agents.changes == {"dgx-01": 1, "dgx-02": 1}
    return Installed(site, portal_check, portal, agents_check, agents, secret)


def install_collection(folder: Path) -> None:
    """Build the collection and install it, as its users do."""
    program = str(Path(sys.executable).with_name("ansible-galaxy"))
    source = ROOT / "ansible" / "ansible_collections" / "vedette" / "platform"
    for arguments in (
        ("build", str(source), "--output-path", str(folder)),
        (
            "install",
            str(folder / "vedette-platform-0.1.0.tar.gz"),
            "--offline",
            "-p",
            "collections",
        ),
    ):
        command = [program, "collection", *arguments]
        subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)


def inventory_of(site: Site, release: Path) -> dict[str, object]:
    portal = SECRETS | {
        "vedette_portal_public_url": site.url,
        "vedette_portal_release_dir": str(release),
        "vedette_portal_pip_args": [
            *("--no-index", "--no-compile"),
            *("--find-links", str(server_packages())),
        ],
        "vedette_portal_operator": "olivia@vedette.example",
        "vedette_portal_store": "victoriametrics",
        "vedette_portal_processes": {"portal": [8000], "access": [8010], "scheduler": [8020]},
        "vedette_portal_fetched_ca_file": str(site.folder / "ca.pem"),
        "vedette_portal_wheelhouse_args": ["--offline"],
    }
    agent = {
        "vedette_agent_portal_urls": [site.url],
        "vedette_agent_portal_ca_file": str(site.folder / "ca.pem"),
        "vedette_agent_settings": {"interval_seconds": 1, "heartbeat_interval_seconds": 1},
        "vedette_agent_plugins": PLUGINS,
    }
    hosts = {
        name: {
            "ansible_host": machine.address,
            "ansible_user": USER,
            "ansible_ssh_private_key_file": str(machine.key),
            "ansible_ssh_common_args": "-o UserKnownHostsFile=/dev/null",
            "ansible_python_interpreter": "/usr/bin/python3",
        }
        for name, machine in site.machines.items()
    }
    return {
        "portal": {"hosts": {"portal-1": hosts.pop("portal-1")}, "vars": portal},
        "appliances": {"hosts": hosts, "vars": agent},
    }


def add_alice(site: Site) -> None:
    """Add a tenant with an admin; write her API token, and an inventory that reads the portal."""
    added = site.machines["portal-1"].run(
        "vedette tenant add Acme && vedette tenant add-user"
        f" {ALICE} --tenant acme --role admin --password {PASSWORD}"
    )
    assert added.returncode == 0, added.stderr
    reply = requests.post(
        f"{site.url}/api/v1/tokens",
        json={"name": "ansible"},
        auth=(ALICE, PASSWORD),
        verify=str(site.folder / "ca.pem"),
        timeout=60,
    )
    (site.folder / "token").write_text(reply.json()["secret"])
    (site.folder / "site.vedette.yml").write_text(
        "plugin: vedette.platform.appliances\n"
        f"url: {site.url}\n"
        "ca_file: ca.pem\n"
        "keyed_groups: [{key: vedette_agent_version, prefix: version}]\n"
    )


def test_check_mode_predicts_the_first_installation(installed: Installed) -> None:
    assert installed.portal_check.changes["portal-1"] > 0
    assert installed.agents_check.changes == {"dgx-01": 1, "dgx-02": 1}
    assert "(dry run) Install python3.11-venv" in installed.agents_check.output


def test_the_portal_answers_behind_nginx_and_the_appliances_are_online(
    installed: Installed,
) -> None:
    site = installed.site
    ready = requests.get(f"{site.url}/readyz", verify=str(site.folder / "ca.pem"), timeout=60)
    rule = {"name": "load", "measurement": "load", "field": "load1", "critical_threshold": 1e9}

    assert ready.json()["status"] == "ready"
    # Samples arrive a moment before the first heartbeat.
    online = {"dgx-01": "online", "dgx-02": "online"}
    eventually(lambda: site.states() == online, what="the appliances to be online")
    eventually(lambda: site.ask("POST", "/rules/preview", rule)["items"], what="samples")


def test_secrets_are_in_no_output(installed: Installed) -> None:
    output = installed.portal.output + installed.agents.output

    for secret in (*SECRETS.values(), installed.enrollment_token):
        assert secret not in output
        assert json.dumps(secret)[1:-1] not in output


def test_a_second_run_changes_nothing(installed: Installed) -> None:
    assert installed.site.play("portal", "--diff").changes == {"portal-1": 0}
    assert installed.site.play("agents").changes == {"dgx-01": 0, "dgx-02": 0}


def test_the_inventory_groups_the_appliances_of_the_portal(installed: Installed) -> None:
    listed = json.loads(installed.site.program("ansible-inventory", "--list").stdout)

    assert listed["site_delft"]["hosts"] == APPLIANCES
    assert listed["version_0_1_0"]["hosts"] == APPLIANCES
    assert listed["status_online"]["hosts"] == APPLIANCES
    assert listed["gpu_none"]["hosts"] == APPLIANCES


def test_an_inventory_without_a_valid_token_says_so(installed: Installed) -> None:
    token = installed.site.folder / "token"
    valid = token.read_text()
    token.write_text("vdt_wrong")
    listed = installed.site.program("ansible-inventory", "--list")
    token.write_text(valid)

    assert "The portal answered 401: The API token is invalid" in listed.stderr


def test_a_setting_with_a_typo_is_refused_and_the_old_file_stays(installed: Installed) -> None:
    config = installed.site.machines["dgx-01"].root / "var" / "lib" / "vedette" / "agent.toml"
    before = config.read_text(encoding="utf-8")

    refused = installed.site.play(
        "agents", "--limit=dgx-01", vedette_agent_settings={"heartbeat_intervall": 1}
    )

    assert refused.ended.returncode != 0
    assert "did you mean heartbeat_interval_seconds?" in refused.output
    assert config.read_text(encoding="utf-8") == before


def test_an_update_whose_agent_does_not_start_is_rolled_back_and_stops_the_play(
    installed: Installed, tmp_path: Path
) -> None:
    site = installed.site
    good = shutil.copytree(site.wheelhouse, tmp_path / "good")
    rebuild_agent(site.wheelhouse, is_broken=True)

    upgraded = site.play("upgrade", vedette_agent_settings={"interval_seconds": 2})
    shutil.copytree(good, site.wheelhouse, dirs_exist_ok=True)

    assert upgraded.ended.returncode != 0
    assert "the old one runs again" in upgraded.output
    assert "dgx-02" not in upgraded.output.split("PLAY RECAP")[1]
    assert site.play("upgrade").changes == {"dgx-01": 0, "dgx-02": 0}
    assert site.states() == {"dgx-01": "online", "dgx-02": "online"}


def test_a_reboot_drains_the_appliance_and_resumes(installed: Installed) -> None:
    rebooted = installed.site.play("reboot", "--limit=dgx-01")

    assert rebooted.changes == {"dgx-01": 3}
    appliances = installed.site.ask("GET", "/appliances")["items"]
    assert [item["drained_at"] for item in appliances] == [None, None]  # type: ignore[attr-defined]


def test_certificates_are_renewed_and_agents_continue(installed: Installed) -> None:
    site = installed.site
    certificate = site.machines["portal-1"].root / "var" / "lib" / "vedette-server" / "server.pem"
    before = certificate.read_text()

    renewed = site.play("certificates", vedette_portal_renew_days=500)

    assert renewed.changes == {"portal-1": 2}
    assert certificate.read_text() != before
    waited = site.machines["dgx-01"].run("cd / && runuser -u vedette -- vedette agent wait")
    assert waited.returncode == 0, waited.stderr


def test_removing_leaves_nothing_and_revokes_the_appliance(installed: Installed) -> None:
    removed = installed.site.play("remove", "--limit=dgx-02", vedette_agent_remove_data=True)

    assert removed.changes == {"dgx-02": 2}
    left = installed.site.machines["dgx-02"].run(
        "ls -d /opt/vedette /var/lib/vedette; getent passwd vedette"
    )
    assert left.stdout == ""
    assert list(installed.site.states()) == ["dgx-01"]
