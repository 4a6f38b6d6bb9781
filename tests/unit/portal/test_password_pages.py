"""A forgotten password, from the page that asks for a link to the one that uses it."""

import pytest

from tests.cast import Cast, FrozenClock
from tests.e2e.inboxes import MailServer
from tests.unit.portal.conftest import Browser
from tests.unit.portal.letters import link_in, text_of, wait_for_letters, without_tokens

pytestmark = pytest.mark.usefixtures("mail")
NEXT = "staple battery horse"


def ask(browser: Browser, email: str) -> str:
    form = {"csrf_token": browser.csrf_token(), "email": email}
    text = browser.client.post("/password/forgot", data=form).text
    wait_for_letters()
    return without_tokens(text.replace(email, "ADDRESS"))


def link_of(mail: MailServer) -> str:
    return link_in(text_of(mail.messages[-1]))


def set_password(browser: Browser, path: str, new: str = NEXT, repeated: str = NEXT) -> int:
    form = {"csrf_token": browser.csrf_token(), "new": new, "repeated": repeated}
    return browser.client.post(path, data=form).status_code


def test_the_link_of_the_email_sets_a_password_that_signs_in(
    nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    ask(nobody, cast.bob.email)
    assert mail.messages[-1]["To"] == cast.bob.email
    assert cast.bob.email in nobody.get(link_of(mail)).text
    assert set_password(nobody, link_of(mail)) == 302
    assert "alert-success" in nobody.get("/login").text
    assert nobody.sign_in(cast.bob.email, NEXT).status_code == 302


def test_the_answer_is_the_same_whether_the_address_is_known_or_not(
    nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    answers = {ask(nobody, email) for email in (cast.bob.email, "nobody@acme.example")}
    assert len(answers) == 1
    assert [message["To"] for message in mail.messages] == [cast.bob.email]


@pytest.fixture
def bob(bob: Browser, cast: Cast) -> Browser:
    """Bob's browser, which is known: he has signed in with it."""
    assert bob.sign_in(cast.bob.email).status_code == 302
    return bob


def test_requests_for_links_by_others_do_not_use_up_those_of_a_known_browser(
    bob: Browser, nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    for _ in range(6):
        text = ask(nobody, cast.bob.email)
    assert "Too many requests" in text
    assert len(mail.messages) == 5
    bob.post("/logout")
    ask(bob, cast.bob.email)
    assert len(mail.messages) == 6


def test_the_link_makes_known_browsers_unknown(
    bob: Browser, nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    bob.post("/logout")
    ask(nobody, cast.bob.email)
    set_password(nobody, link_of(mail))
    for _ in range(5):
        assert nobody.sign_in(cast.bob.email, "wrong").status_code == 401
    assert bob.sign_in(cast.bob.email, NEXT).status_code == 429


def test_the_link_signs_every_browser_out(
    bob: Browser, nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    ask(nobody, cast.bob.email)
    set_password(nobody, link_of(mail))
    assert bob.get("/jobs").status_code == 302


def test_the_link_works_once_and_opening_it_does_not_use_it_up(
    nobody: Browser, cast: Cast, mail: MailServer
) -> None:
    ask(nobody, cast.bob.email)
    path = link_of(mail)
    for _ in range(2):
        assert nobody.get(path).status_code == 200
    assert set_password(nobody, path) == 302
    assert set_password(nobody, path) == 404
    assert "no longer valid" in nobody.get(path).text


def test_the_link_lasts_an_hour(
    nobody: Browser, cast: Cast, mail: MailServer, clock: FrozenClock
) -> None:
    ask(nobody, cast.bob.email)
    clock.advance(3600)
    assert nobody.get(link_of(mail)).status_code == 404


@pytest.mark.usefixtures("cast")
def test_a_link_that_was_tampered_with_is_no_link(nobody: Browser) -> None:
    answer = nobody.get("/password/reset/InZkcl9ndWVzc2VkIg.c2lnbmF0dXJl")
    assert answer.status_code == 404
    assert "incomplete" in answer.text


@pytest.mark.parametrize(("new", "repeated"), [("short", "short"), (NEXT, "another one")])
def test_a_bad_password_is_said_and_the_link_stays_good(
    nobody: Browser, cast: Cast, mail: MailServer, new: str, repeated: str
) -> None:
    ask(nobody, cast.bob.email)
    assert set_password(nobody, link_of(mail), new, repeated) == 422
    assert set_password(nobody, link_of(mail)) == 302


def test_asking_too_often_has_to_wait(nobody: Browser, cast: Cast, mail: MailServer) -> None:
    answers = [ask(nobody, cast.bob.email) for _ in range(6)]
    assert "Try again in 1 min." in answers[-1]
    assert len(mail.messages) == 5


def test_the_sign_in_page_leads_there(nobody: Browser) -> None:
    assert 'href="/password/forgot"' in nobody.get("/login").text
