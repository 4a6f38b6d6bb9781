"""`vedette agent check` at a real portal and a real InfluxDB: who is in order, and who is not."""

from pathlib import Path

import requests

from collector.data_dir import Identity, save_identity
from tests.fixtures.databases import influxdb
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.nginx import Front


def test_an_enrolled_appliance_passes_the_check_and_an_unknown_one_does_not(
    front: Front, tmp_path: Path
) -> None:
    deployment = front.deployment
    home = tmp_path / "home"
    home.mkdir()
    secret = deployment.enrollment_secret("acme")
    enrolled = deployment.vedette(
        "agent", "enroll", deployment.url, secret, "--name", "checked", "--data-dir", str(home)
    )
    assert enrolled.returncode == 0, enrolled.stderr
    with (home / "agent.toml").open("a", encoding="utf-8") as file:
        file.write('executor = "none"\nbuffer_max_bytes = 1048576\n')

    in_order = deployment.vedette("agent", "check", "--data-dir", str(home))
    save_identity(home, Identity(appliance_id="x", tenant_id="acme", agent_token="stranger"))
    stranger = deployment.vedette("agent", "check", "--data-dir", str(home))

    assert in_order.returncode == 0, in_order.stdout + in_order.stderr
    assert [line.split()[0] for line in in_order.stdout.splitlines()] == ["ok"] * 7
    assert stranger.returncode == 1
    assert "the portal refuses this appliance" in stranger.stdout


def test_a_database_that_is_missing_or_refuses_the_password_is_reported(tmp_path: Path) -> None:
    with influxdb(tmp_path, with_auth=True) as url:
        query(url, "CREATE USER writer WITH PASSWORD 'right' WITH ALL PRIVILEGES")
        refused = check_influxdb(tmp_path, url, password="wrong")
        missing = check_influxdb(tmp_path, url, password="right")
        query(url, "CREATE DATABASE vitals", u="writer", p="right")
        in_order = check_influxdb(tmp_path, url, password="right")
    assert refused.returncode == 1
    assert "401: authorization failed" in refused.stdout
    assert "password" in refused.stdout
    assert missing.returncode == 1
    assert 'database not found: "vitals". Create it on the server' in missing.stdout
    assert in_order.returncode == 0, in_order.stdout + in_order.stderr
    assert f"writing to {url}: vitals accepts samples" in in_order.stdout


def check_influxdb(folder: Path, url: str, *, password: str) -> Result:
    home = folder / "agent"
    home.mkdir(exist_ok=True)
    (home / "agent.toml").write_text(
        f'data_dir = "{home}"\nexecutor = "none"\n[influxdb]\nurl = "{url}"\n'
        f'database = "vitals"\nusername = "writer"\npassword = "{password}"\n'
    )
    return run_vedette("agent", "check", "--data-dir", str(home))


def query(url: str, text: str, **credentials: str) -> None:
    requests.post(f"{url}/query", params=credentials, data={"q": text}, timeout=60)
