"""`vedette tenant`: what an operator does with tenants where the database is."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.tenant import tenant
from tests.fixtures.migrated import copy_migrated


@pytest.fixture(autouse=True)
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "TIMESERIES_URL", "VEDETTE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VEDETTE_DATA_DIR", str(tmp_path))
    copy_migrated(tmp_path / "vedette.db")
    run("add", "Acme Robotics", "--slug", "acme")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(tenant, list(arguments))


def test_tenants_are_listed_with_their_state() -> None:
    listed = run("list").output
    assert "acme" in listed
    assert "active" in listed


def test_a_tenant_is_suspended_and_activated() -> None:
    assert run("suspend", "acme").output == "acme is suspended.\n"
    assert run("activate", "acme").output == "acme is active.\n"


def test_closing_prompts_for_confirmation() -> None:
    assert run("close", "acme").exit_code == 1
    assert run("close", "acme", "--yes").output == "acme is closed.\n"


def test_an_open_tenant_is_not_removed() -> None:
    refused = run("remove", "acme", "--name", "Acme Robotics")
    assert "Close it first" in str(refused.exception)


def test_a_closed_tenant_is_handed_to_the_server_to_be_removed(tmp_path: Path) -> None:
    run("close", "acme", "--yes")
    assert "Type the tenant's name" in str(run("remove", "acme", "--name", "acme").exception)
    done = run("remove", "acme", "--name", "Acme Robotics")
    assert str(tmp_path / "exports") in done.output
    assert "exporting" in run("list", "--removed").output


def test_quotas_are_set_shown_and_removed() -> None:
    shown = run("quota", "acme", "--gpus", "8", "--measurements", "70").output
    assert "max_gpus             8\n" in shown
    assert "max_appliances       unlimited\n" in shown
    assert "8" not in run("quota", "acme", "--unlimited").output


def test_a_missing_tenant_is_named() -> None:
    assert "no tenant 'nope'" in str(run("suspend", "nope").exception)
