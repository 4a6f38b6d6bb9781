"""Security headers, cookies, redirects and size limits."""

import gzip
import re
from dataclasses import replace

import pytest
from flask import Flask

from core.settings import ServerSettings
from portal.app import MAX_BODY_BYTES, MAX_FORM_FIELD_BYTES, MAX_FORM_PARTS
from portal.auth.guard import safe_next
from tests.cast import PASSWORD, Cast
from tests.fixtures.shared_portal import Serve
from tests.unit.portal.conftest import Browser

SCRIPT = re.compile(r"<script(?P<attributes>[^>]*)>(?P<body>.*?)</script>", re.DOTALL)
FILE = re.compile(r'(?:src|href)="(/(?:static|dashboards/(?:assets|_dash-[a-z-]+))/[^"]+)"')
ELSEWHERE = [
    "https://evil.example/",
    "//evil.example/",
    "/\\evil.example",
    "\\\\evil.example",
    "evil",
    "javascript:alert(1)",
    "/\t/evil.example",
    "/\r\nLocation: https://evil.example",
    "http:///evil.example",
    "///evil.example",
    "https:evil.example",
]


@pytest.fixture
def secure_app(settings: ServerSettings, serve: Serve) -> Flask:
    """The portal as https://portal.example/."""
    return serve(replace(settings, public_url="https://portal.example"))


def policy_of(browser: Browser, path: str) -> dict[str, list[str]]:
    answer = browser.get(path)
    parts = answer.headers["Content-Security-Policy"].split(";")
    return {words[0]: words[1:] for words in map(str.split, parts) if words}


@pytest.mark.parametrize(
    "path", ["/login", "/settings", "/dashboards/", "/api/v1/docs", "/nothing"]
)
def test_no_page_runs_inline_script_or_evaluates_text(alice: Browser, path: str) -> None:
    policy = policy_of(alice, path)
    allowed = [word for word in policy["script-src"] if not word.startswith("'sha256-")]
    assert allowed == ["'self'"]
    assert policy["default-src"] == ["'self'"]
    assert policy["object-src"] == ["'none'"]


@pytest.mark.parametrize("path", ["/login", "/settings", "/dashboards/", "/nothing"])
def test_no_site_can_frame_a_page_or_receive_its_forms(alice: Browser, path: str) -> None:
    policy = policy_of(alice, path)
    assert policy["frame-ancestors"] == ["'none'"]
    assert policy["form-action"] == policy["base-uri"] == ["'self'"]
    assert alice.get(path).headers["X-Frame-Options"] == "DENY"


def test_an_embedded_dashboard_can_be_framed_by_the_portal_alone(alice: Browser) -> None:
    path = "/dashboards/?embed=1"
    assert policy_of(alice, path)["frame-ancestors"] == ["'self'"]
    answer = alice.get(path)
    assert answer.headers["X-Frame-Options"] == "SAMEORIGIN"
    assert "vd-sidebar" not in answer.text
    assert alice.get("/jobs?embed=1").headers["X-Frame-Options"] == "DENY"


def test_the_dashboards_have_one_inline_script_and_its_hash_is_in_the_policy(
    alice: Browser,
) -> None:
    page = alice.get("/dashboards/").text
    inline = [
        script["body"]
        for script in SCRIPT.finditer(page)
        if "src=" not in script["attributes"] and "application/json" not in script["attributes"]
    ]
    assert inline == ["var renderer = new DashRenderer();"]
    hashes = [
        word
        for word in policy_of(alice, "/dashboards/")["script-src"]
        if word.startswith("'sha256-")
    ]
    assert len(hashes) == 1


@pytest.mark.parametrize(
    "path", ["/settings", "/api/v1/jobs", "/dashboards/", "/dashboards/_dash-layout", "/nothing"]
)
def test_responses_are_not_cached(alice: Browser, path: str) -> None:
    assert alice.get(path).headers["Cache-Control"] == "private, no-store"


@pytest.mark.parametrize("path", ["/settings", "/dashboards/"])
def test_browsers_keep_the_files_of_a_page(alice: Browser, path: str) -> None:
    page = alice.get(path).text
    files = re.findall(
        r'(?:src|href)="(/(?:static|dashboards/(?:assets|_dash-[a-z-]+))/[^"]+)"', page
    )
    assert len(files) >= 10
    for address in files:
        with alice.get(address) as answer:
            assert answer.status_code == 200
            assert "max-age=31536000" in answer.headers["Cache-Control"], address
            assert "Cookie" not in answer.headers.get("Vary", ""), address
            assert "Set-Cookie" not in answer.headers, address
        # Another portal may have another version of it, during an upgrade.
        with alice.get(re.sub(r"([?&][vm]=)\w", r"\1x", address)) as answer:
            is_kept = "max-age=31536000" in answer.headers["Cache-Control"]
            assert (answer.status_code, is_kept) == (200, "?" not in address), address
    with alice.get("/static/vedette.css") as answer:
        assert "max-age" not in answer.headers["Cache-Control"]


def test_dashboards_are_compressed_but_for_the_page_with_the_token(alice: Browser) -> None:
    path, accept = "/dashboards/_dash-dependencies", {"Accept-Encoding": "gzip"}
    answer, plain = alice.get(path, accept), alice.get(path)
    assert answer.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert gzip.decompress(answer.data) == plain.data
    assert len(answer.data) < len(plain.data) / 5
    assert "Accept-Encoding" in plain.headers["Vary"]
    assert "Content-Encoding" not in alice.get("/dashboards/", accept).headers


@pytest.mark.parametrize("path", ["/login", "/api/v1/jobs", "/static/vedette.css", "/nothing"])
def test_every_response_forbids_content_sniffing(nobody: Browser, path: str) -> None:
    with nobody.get(path) as answer:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert answer.headers["Referrer-Policy"] == "same-origin"


@pytest.mark.parametrize("name", ["__Host-vedette", "__Host-vedette-device"])
def test_https_binds_the_cookies_to_the_host(secure_app: Flask, cast: Cast, name: str) -> None:
    browser = Browser(secure_app.test_client())
    options = {
        "base_url": "https://portal.example",
        "headers": {"Referer": "https://portal.example/"},
    }
    page = browser.client.get("/login", **options)
    token = re.search(r'csrf-token" content="([^"]+)"', page.text)
    assert token is not None
    form = {"csrf_token": token[1], "email": cast.alice.email, "password": PASSWORD}
    answer = browser.client.post("/login", data=form, **options)
    cookies = answer.headers.getlist("Set-Cookie")
    (cookie,) = [header for header in cookies if header.startswith(f"{name}=")]
    words = {word.strip() for word in cookie.split(";")[1:]}
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"} <= words
    assert not any(word.startswith("Domain") for word in words)


def test_https_sets_strict_transport_security(secure_app: Flask, nobody: Browser) -> None:
    answer = secure_app.test_client().get("/login")
    assert answer.headers["Strict-Transport-Security"] == "max-age=31536000"
    assert "Strict-Transport-Security" not in nobody.get("/login").headers


def test_signing_in_replaces_a_planted_session(app: Flask, cast: Cast) -> None:
    browser = Browser(app.test_client())
    with browser.client.session_transaction() as session:
        session["planted"] = "by somebody else"
        session["login"] = "vds_known_to_somebody_else"
    assert browser.sign_in(cast.alice.email).status_code == 302
    with browser.client.session_transaction() as session:
        assert "planted" not in session
        assert session["login"] != "vds_known_to_somebody_else"


@pytest.mark.parametrize("target", ELSEWHERE)
def test_signing_in_never_redirects_outside_the_portal(target: str) -> None:
    assert safe_next(target) == "/"


@pytest.mark.parametrize("target", ["/jobs", "/alerts?state=firing", "/dashboards/?range=1h#gpu"])
def test_signing_in_redirects_to_paths_of_the_portal(target: str) -> None:
    assert safe_next(target) == target


@pytest.mark.parametrize("target", ELSEWHERE)
def test_signing_in_with_an_external_target_redirects_home(
    nobody: Browser, cast: Cast, target: str
) -> None:
    form = {
        "csrf_token": nobody.csrf_token(),
        "email": cast.alice.email,
        "password": PASSWORD,
    }
    answer = nobody.client.post("/login", query_string={"next": target}, data=form)
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/"


def test_a_body_that_is_too_large_is_413(alice: Browser) -> None:
    headers = {"X-CSRFToken": alice.token()}
    body = b'{"name": "' + b"x" * MAX_BODY_BYTES + b'"}'
    answer = alice.client.post(
        "/api/v1/jobs", data=body, content_type="application/json", headers=headers
    )
    assert answer.status_code == 413
    assert answer.json is not None
    assert answer.json["code"] == "request_entity_too_large"


def test_a_form_of_too_many_parts_is_413(alice: Browser) -> None:
    headers = {"X-CSRFToken": alice.token()}
    parts = {f"field{number}": "x" for number in range(MAX_FORM_PARTS + 1)}
    answer = alice.client.post(
        "/receivers", data=parts, content_type="multipart/form-data", headers=headers
    )
    assert answer.status_code == 413


def test_a_form_with_too_long_a_field_is_413(alice: Browser) -> None:
    headers = {"X-CSRFToken": alice.token()}
    field = b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n'
    body = field + b"x" * (MAX_FORM_FIELD_BYTES + 1) + b"\r\n--b--\r\n"
    answer = alice.client.post(
        "/receivers", data=body, content_type="multipart/form-data; boundary=b", headers=headers
    )
    assert answer.status_code == 413
