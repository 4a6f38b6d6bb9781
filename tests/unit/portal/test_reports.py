"""Reports in the portal: page, REST, and files."""

import pytest

from core.db import SessionFactory
from tests.cast import Cast, FrozenClock
from tests.unit.portal.conftest import Browser
from tests.unit.portal.world import add_appliance, run_job

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
    for kind in ("gpu-time", "availability", "alerts"):
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


@pytest.mark.usefixtures("cast")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("kind=jobs&by=rule", "by"),
        ("by=user", "kind"),
        ("kind=jobs&target_percent=101", "target_percent"),
        ("kind=jobs&since=2026-03-03T00:00Z&until=2026-03-02T00:00Z", "since"),
    ],
)
def test_a_wrong_question_names_the_field(alice: Browser, query: str, field: str) -> None:
    answer = alice.get(f"/api/v1/reports?{query}")
    assert answer.status_code == 422
    assert field in answer.get_json()["errors"]
    page = alice.get("/reports?price=cheap&since=2026-03-02")
    assert page.status_code == 422
    assert "cheap" in page.text
