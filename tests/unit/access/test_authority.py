"""The API returns the authority of the portal's certificate to an appliance that enrolls."""

from pathlib import Path

import pytest

from core.settings import ServerSettings
from tests.fixtures.certificates import Authority
from tests.unit.access.conftest import AgentAPI


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ServerSettings:
    authority = Authority(tmp_path / "certificates", "company").certificate
    has_own: bool = request.param
    return ServerSettings(data_dir=tmp_path, tls_authority_file=authority if has_own else None)


@pytest.mark.parametrize("settings", [True], indirect=True)
def test_the_authority_is_public(api: AgentAPI, settings: ServerSettings) -> None:
    answer = api.request("GET", "/agent/v1/authority", headers={"Authorization": None})
    assert answer.status_code == 200
    assert settings.tls_authority_file is not None
    assert answer.text == settings.tls_authority_file.read_text()


@pytest.mark.parametrize("settings", [False], indirect=True)
def test_a_portal_with_a_public_certificate_advertises_no_authority(api: AgentAPI) -> None:
    answer = api.request("GET", "/agent/v1/authority")
    assert answer.status_code == 404
    assert "Enroll without --ca-sha256" in answer.json()["message"]
