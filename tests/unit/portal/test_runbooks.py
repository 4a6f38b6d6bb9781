"""Runbooks in the portal and in the API."""

from tests.unit.portal.conftest import Browser


def test_each_runbook_is_listed_and_shows_its_steps(bob: Browser) -> None:
    pack = bob.get("/api/v1/rules/pack").json
    assert pack is not None
    listed = bob.get("/runbooks").text
    for rule in pack["rules"]:
        assert f"/runbooks/{rule['key']}" in listed
    shown = bob.get("/runbooks/clock-skew").text
    assert "<code>timedatectl</code>" in shown
    assert "node_exporter" in shown


def test_an_unknown_runbook_is_not_found(bob: Browser) -> None:
    assert bob.get("/runbooks/nothing").status_code == 404
