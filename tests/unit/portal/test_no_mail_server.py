"""Without a mail server, password resets are off and inviters get the link."""

import pytest

from tests.cast import PASSWORD, Cast
from tests.unit.portal.conftest import Browser
from tests.unit.portal.letters import link_in


@pytest.mark.usefixtures("cast")
def test_a_forgotten_password_is_reset_by_the_operator(nobody: Browser) -> None:
    text = nobody.get("/password/forgot").text
    assert "can't send email" in text
    assert "vedette tenant password-link" in text


def test_the_link_of_an_invitation_is_shown_to_the_inviter_once(
    alice: Browser, nobody: Browser, cast: Cast
) -> None:
    page = alice.post("/users", {"email": "dora@example.com", "role": "member"})
    path = link_in(page.text)
    assert path not in alice.get("/users").text
    form = {
        "csrf_token": nobody.csrf_token(),
        "name": "Dora",
        "password": PASSWORD,
        "repeated": PASSWORD,
    }
    assert nobody.client.post(path, data=form).status_code == 302
    assert cast.acme.name in nobody.get("/jobs").text


@pytest.mark.usefixtures("cast")
def test_the_api_hands_the_link_to_the_inviter(alice: Browser) -> None:
    made = alice.call("POST", "/api/v1/invitations", {"email": "dora@example.com"}).json
    assert made is not None
    assert made["is_sent"] is False
    assert made["link"].startswith("http://portal.example/invitation/")
    (listed,) = alice.get("/api/v1/invitations").json["items"]  # type: ignore[index] # JSON
    assert "link" not in listed
