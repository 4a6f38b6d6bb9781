"""`/docs/`: the site of the documentation, for users who are signed in."""

from pathlib import Path

import pytest

from portal.pages import documentation
from tests.unit.portal.conftest import Browser

SCRIPT = "'sha256-AAAA'"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    monkeypatch.setattr(documentation, "SITE", folder)
    return folder


def built(site: Path) -> None:
    site.mkdir()
    (site / "index.html").write_text("<h1>Documentation</h1>")
    (site / documentation.SCRIPTS_NAME).write_text(f'["{SCRIPT}"]')
    (site.parent / "secret.html").write_text("secret")


def test_pages_may_run_the_scripts_of_the_build_alone(site: Path, alice: Browser) -> None:
    built(site)
    with alice.get("/docs/index.html") as page:
        assert page.get_data(as_text=True) == "<h1>Documentation</h1>"
        assert f"script-src 'self' {SCRIPT};" in page.headers["Content-Security-Policy"]
        assert page.headers["Cache-Control"] == "max-age=300, private"
    assert alice.get("/docs").headers["Location"] == "/docs/index.html"
    assert alice.get("/docs/missing.html").status_code == 404
    assert alice.get("/docs/..%2fsecret.html").status_code == 404
    assert 'href="/docs' in alice.get("/jobs").text


def test_without_a_site_the_page_says_how_to_build_it(site: Path, alice: Browser) -> None:
    answer = alice.get("/docs/index.html")
    assert answer.status_code == 404
    assert "make docs" in answer.text
    assert 'href="/docs' not in alice.get("/jobs").text
    assert not site.exists()


def test_strangers_sign_in_first(site: Path, nobody: Browser) -> None:
    built(site)
    assert nobody.get("/docs/index.html").status_code == 302
