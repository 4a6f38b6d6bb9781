"""Without a reachable mail server the inviter gets the link and the reason."""

from pathlib import Path

import pytest

from core.settings import ServerSettings
from tests.servers import free_port
from tests.unit.portal.conftest import Browser
from tests.unit.portal.letters import link_in


@pytest.fixture
def settings(tmp_path: Path) -> ServerSettings:
    return ServerSettings(
        data_dir=tmp_path,
        public_url="http://portal.example",
        smtp_url=f"smtp://127.0.0.1:{free_port()}",
    )


@pytest.mark.usefixtures("cast")
def test_an_invitation_that_could_not_be_sent_is_passed_on(alice: Browser, nobody: Browser) -> None:
    text = alice.post("/users", {"email": "dora@example.com", "role": "member"}).text
    assert "could not be sent" in text
    assert nobody.get(link_in(text)).status_code == 200
