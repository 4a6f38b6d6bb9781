"""Reports in the portal: page, REST, and files."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from alerting.notification.models import Notification
from core.db import SessionFactory
from dash_app.reports.report import ReportKind
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world_parts import add_appliance, run_job

FILES = {
    "csv": b"user,jobs,",
    "xlsx": b"PK",
    "pdf": b"%PDF",
}


@pytest.fixture
def train(sessions: SessionFactory, cast: Cast, clock: FrozenClock) -> None:
    """A running job of bob's."""
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-01", now=clock.now)
        run_job(session, cast, now=clock.now)
    clock.advance(60)


@pytest.mark.usefixtures("train")
def test_the_api_and_the_page_show_the_tenants_own_report(
    alice: Browser, charlie: Browser, olivia: Browser
) -> None:
    answer = alice.get("/api/v1/reports?kind=jobs").get_json()
    assert [column["name"] for column in answer["columns"][:2]] == ["user", "jobs"]
    assert [row[1] for row in answer["rows"]] == [1]
    assert answer["totals"][1] == 1
    assert charlie.get("/api/v1/reports?kind=jobs").get_json()["rows"] == []
    page = alice.get("/reports?kind=jobs&by=appliance")
    assert "dgx-01" in page.text
    assert "Nothing to report" in charlie.get("/reports?kind=jobs").text
    assert "By tenant" in olivia.get("/reports?kind=jobs&by=tenant").text
    for kind in ReportKind:
        assert alice.get(f"/reports?kind={kind}&target=99.5&price=0.3").status_code == 200


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("file_format", FILES)
def test_a_report_is_downloaded_from_the_page_and_the_api(alice: Browser, file_format: str) -> None:
    for path in ("/reports/export", "/api/v1/reports/export"):
        file = alice.get(f"{path}?kind=jobs&format={file_format}")
        assert file.data.startswith(FILES[file_format])
        name = file.headers["Content-Disposition"]
        assert "jobs_by_user_" in name
        assert name.endswith(f'.{file_format}"')


@pytest.mark.usefixtures("train")
def test_a_table_and_its_file_are_sorted_and_searched(
    alice: Browser, sessions: SessionFactory, cast: Cast, clock: FrozenClock
) -> None:
    with sessions.begin() as session:
        add_appliance(session, cast, "dgx-02", now=clock.now)
        add_appliance(session, cast, "hgx-01", now=clock.now - timedelta(days=3))
    clock.advance(3600)
    path = "kind=availability&by=appliance"

    def rows(query: str) -> list[str]:
        file = alice.get(f"/reports/export?{path}&{query}").text
        return [line.partition(",")[0] for line in file.splitlines()[1:]]

    assert rows("sort=appliance") == ["dgx-01", "dgx-02", "hgx-01"]
    assert rows("sort=-appliance") == ["hgx-01", "dgx-02", "dgx-01"]
    assert rows("sort=appliance&search=DGX") == ["dgx-01", "dgx-02"]
    assert rows("sort=nonsense&search=nothing") == []
    page = alice.get(f"/reports?{path}&sort=-appliance&search=dgx").text
    assert page.index("dgx-02") < page.index("dgx-01")
    assert "hgx-01" not in page
    assert 'aria-sort="descending"' in page
    assert "No rows match" in alice.get(f"/reports?{path}&search=nothing").text


@pytest.mark.usefixtures("cast")
def test_a_wrong_question_names_the_field(alice: Browser) -> None:
    for query, field in (
        ("kind=jobs&by=rule", "by"),
        ("by=user", "kind"),
        ("kind=jobs&target_percent=101", "target_percent"),
        ("kind=jobs&since=2026-03-03T00:00Z&until=2026-03-02T00:00Z", "since"),
    ):
        answer = alice.get(f"/api/v1/reports?{query}")
        assert answer.status_code == 422
        assert field in answer.get_json()["errors"]
        page = alice.get("/reports?price=cheap&since=2026-03-02")
        assert page.status_code == 422
        assert "cheap" in page.text


def test_a_report_is_saved_emailed_paused_and_deleted_in_the_browser(
    bob: Browser, alice: Browser, charlie: Browser, sessions: SessionFactory
) -> None:
    form = bob.get("/reports/saved/new?kind=gpu-time&by=site&price=0.3&appliances=lyon").text
    assert 'value="lyon"' in form
    assert 'value="0.3"' in form
    values: dict[str, object] = {
        "name": "Costs",
        "kind": "gpu-time",
        "by": "site",
        "period": "last-month",
        "price": "0.3",
        "schedule": "0 7 1 * *",
        "time_zone": "Europe/Oslo",
        "file_format": "xlsx",
        "recipients": ["bob@acme.example"],
    }
    wrong = bob.post("/reports/saved/new", {**values, "recipients": ["charlie@globex.example"]})
    assert wrong.status_code == 422
    place = bob.post("/reports/saved/new", values).headers["Location"]
    page = bob.get(place)
    assert "Costs" in bob.get("/reports/saved").text
    assert "Europe/Oslo" in page.text
    assert bob.get(f"{place}/export").data.startswith(b"PK")
    # Admins change every report.
    assert "Costs" in alice.get(f"{place}/edit").text
    assert alice.post(f"{place}/edit", {**values, "name": "Energy costs"}).status_code == 302
    bob.post(f"{place}/send")
    with sessions() as session:
        assert session.scalars(select(Notification.address)).all() == ["bob@acme.example"]
    bob.post(f"{place}/pause")
    assert "Resume" in bob.get(place).text
    assert charlie.get(place).status_code == 404
    bob.post(f"{place}/delete")
    assert bob.get(place).status_code == 404


@pytest.mark.usefixtures("cast")
def test_the_api_saves_shows_and_changes_reports(bob: Browser) -> None:
    body: dict[str, object] = {
        "name": "Jobs",
        "kind": "jobs",
        "by": "user",
        "period": "last-week",
        "schedule": "0 7 * * 1",
        "recipients": ["alice@acme.example"],
    }
    made = bob.call("POST", "/api/v1/saved-reports", body).get_json()
    # The Monday after the clock's, in UTC.
    assert made["next_run_at"] == "2026-03-09T07:00:00+00:00"
    path = f"/api/v1/saved-reports/{made['id']}"
    assert bob.call("POST", f"{path}/pause").get_json()["next_run_at"] is None
    assert bob.call("POST", f"{path}/resume").get_json()["is_enabled"] is True
    assert bob.call("POST", f"{path}/send").get_json() == {"emails": 1}
    assert bob.get(f"{path}/export").data.startswith(b"%PDF")
    assert (
        bob.call("PATCH", path, body | {"period": "yesterday"}).get_json()["period"] == "yesterday"
    )
    assert [report["name"] for report in bob.get("/api/v1/saved-reports").get_json()["items"]] == [
        "Jobs"
    ]
    wrong = bob.call("POST", "/api/v1/saved-reports", body | {"name": "X", "schedule": "* * * * *"})
    assert list(wrong.get_json()["errors"]) == ["schedule"]
    assert bob.call("DELETE", path).status_code == 204
