"""Guessing against a running server: it stays slow, and blocks nobody who signed in before."""

import re
from collections.abc import Iterator

import pytest
import requests

from cli.bootstrap import DEMO_PASSWORD
from tests.deployment import ALICE, BOB, CHARLIE, Deployment, make_deployment, serving

pytestmark = pytest.mark.timeout(300)

ADDRESS_TRIES = 50
NEW = "staple battery horse"
_CSRF = re.compile(r'name="csrf-token" content="([^"]+)"')


class Browser:
    """A browser at 127.0.0.1, as all of these tests' are."""

    def __init__(self, deployment: Deployment) -> None:
        self._url = deployment.url
        self._http = requests.Session()

    def post(self, path: str, **fields: str) -> requests.Response:
        page = self._http.get(f"{self._url}{path}", timeout=60)
        token = _CSRF.search(page.text)
        assert token is not None
        form = {"csrf_token": token[1], **fields}
        return self._http.post(f"{self._url}{path}", data=form, timeout=60, allow_redirects=False)

    def sign_in(self, email: str, password: str = DEMO_PASSWORD) -> int:
        """Sign in and out again; return the status."""
        answer = self.post("/login", email=email, password=password)
        self._http.cookies.pop("vedette", None)
        return answer.status_code


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    deployment = make_deployment(tmp_path_factory.mktemp("deployment"))
    with serving(deployment, environ={"VEDETTE_REQUESTS_PER_SECOND_PER_ADDRESS": "0"}):
        yield deployment


@pytest.mark.nightly
def test_a_guesser_behind_the_same_address_blocks_only_who_is_new(deployment: Deployment) -> None:
    alice, bob, charlie, guesser = (Browser(deployment) for _ in range(4))
    assert alice.sign_in(ALICE) == bob.sign_in(BOB) == 302

    answers = [guesser.sign_in(BOB, "wrong") for _ in range(6)]
    assert answers == [401] * 5 + [429]
    assert guesser.sign_in(BOB) == 429
    assert charlie.sign_in(CHARLIE) == 302
    charlie = Browser(deployment)

    for number in range(ADDRESS_TRIES - 5):
        assert guesser.sign_in(f"{number}@acme.example", "wrong") == 401
    assert charlie.sign_in(CHARLIE) == 429
    program = requests.post(
        f"{deployment.url}/api/v1/tokens",
        json={"name": "x"},
        auth=(CHARLIE, DEMO_PASSWORD),
        timeout=60,
    )
    assert program.status_code == 429
    assert 0 < int(program.headers["Retry-After"]) <= 60
    assert "network address" in program.json()["message"]

    assert alice.sign_in(ALICE) == bob.sign_in(BOB) == 302
    assert alice.sign_in(BOB) == 429

    link = deployment.vedette("tenant", "password-link", BOB).stdout.split()[-1]
    path = link.removeprefix(deployment.url)
    assert Browser(deployment).post(path, new=NEW, repeated=NEW).status_code == 302
    assert bob.sign_in(BOB, NEW) == 429  # his browser is a new one again
    assert alice.sign_in(ALICE) == 302
