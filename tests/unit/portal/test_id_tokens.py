"""Validation of ID tokens: one defect each, from a provider that signs anything."""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from core.errors import UnavailableError
from core.settings import ServerSettings
from portal.auth.identity_errors import RefusedIdentityError
from portal.auth.oidc_provider import Provider
from tenants.users.oidc import Identity
from tests.cast import NOON, FrozenClock
from tests.fixtures.puppet_provider import Claims, PuppetProvider, puppet_provider

SECONDS = int(NOON.timestamp())
SECRET = "a secret of the client that is long enough"
HOUR = 3600


@pytest.fixture
def puppet() -> Iterator[PuppetProvider]:
    with puppet_provider() as running:
        yield running


@pytest.fixture
def settings(tmp_path: Path, puppet: PuppetProvider) -> ServerSettings:
    return ServerSettings(
        data_dir=tmp_path,
        oidc_issuer=puppet.issuer,
        oidc_client_id="vedette",
        oidc_client_secret=SECRET,
    )


@pytest.fixture
def provider(settings: ServerSettings, clock: FrozenClock) -> Provider:
    return connected(settings, clock)


def connected(settings: ServerSettings, clock: FrozenClock) -> Provider:
    return Provider(settings, redirect_uri="http://portal.example/back", clock=clock)


def claims(puppet: PuppetProvider, **changes: object) -> Claims:
    """Return good claims, some changed; None leaves one out."""
    good: dict[str, Any] = {
        "iss": puppet.issuer,
        "sub": "dana-1",
        "aud": "vedette",
        "nonce": "n",
        "iat": SECONDS,
        "exp": SECONDS + 60,
        "email": "dana@acme.example",
        "email_verified": True,
        "name": "Dana",
        "groups": ["a", "b"],
    }
    return {name: value for name, value in (good | changes).items() if value is not None}


def finish(provider: Provider) -> Identity:
    return provider.finish("code", nonce="n", verifier="v" * 48)


def refused(provider: Provider) -> None:
    with pytest.raises(RefusedIdentityError):
        finish(provider)


def test_a_valid_token_identifies_the_user(puppet: PuppetProvider, provider: Provider) -> None:
    puppet.sign(claims(puppet))
    assert finish(provider) == Identity(
        issuer=puppet.issuer,
        subject="dana-1",
        email="dana@acme.example",
        is_email_verified=True,
        name="Dana",
        groups=frozenset({"a", "b"}),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another-client"},
        {"aud": "another-client", "azp": "vedette"},
        {"aud": ["vedette", "another-client"]},
        {"aud": ["vedette", "another-client"], "azp": "another-client"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": 5},
        {"sub": "x" * 256},
        {"exp": None},
        {"exp": SECONDS - 61},
        {"iat": SECONDS + 61, "exp": SECONDS + HOUR},
        {"iat": None},
        {"nbf": SECONDS + 61},
    ],
)
def test_a_token_with_one_wrong_claim_is_refused(
    puppet: PuppetProvider, provider: Provider, changes: dict[str, object]
) -> None:
    puppet.sign(claims(puppet, **changes))
    refused(provider)


def test_clocks_may_differ_by_a_minute(puppet: PuppetProvider, provider: Provider) -> None:
    puppet.sign(claims(puppet, iat=SECONDS + 60, exp=SECONDS + HOUR))
    finish(provider)
    puppet.sign(claims(puppet, iat=SECONDS - HOUR, exp=SECONDS - 59))
    finish(provider)


def test_an_unsigned_token_is_refused(puppet: PuppetProvider, provider: Provider) -> None:
    def part(value: object) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    puppet.send(f"{part({'alg': 'none'})}.{part(claims(puppet))}.")
    refused(provider)


def test_a_token_signed_by_another_key_with_the_same_id_is_refused(
    puppet: PuppetProvider, provider: Provider
) -> None:
    puppet.sign(claims(puppet), key=RSAKey.generate_key(2048, {"kid": "first"}))
    refused(provider)


def test_a_token_signed_by_the_client_secret_is_refused(
    puppet: PuppetProvider, provider: Provider
) -> None:
    puppet.metadata["id_token_signing_alg_values_supported"] = ["RS256", "HS256"]
    key = OctKey.import_key(SECRET, {"kid": "first"})
    puppet.keys = [puppet.key]
    puppet.sign(claims(puppet), algorithm="HS256", key=key)
    refused(provider)


def test_a_token_with_the_public_key_as_its_secret_is_refused(
    puppet: PuppetProvider, provider: Provider
) -> None:
    assert isinstance(puppet.key, RSAKey)
    public = OctKey.import_key(puppet.key.as_pem(private=False).hex(), {"kid": "first"})
    puppet.sign(claims(puppet), algorithm="HS256", key=public)
    refused(provider)


def test_elliptic_curve_keys_are_accepted(puppet: PuppetProvider, provider: Provider) -> None:
    key = ECKey.generate_key("P-256", {"kid": "curve"})
    puppet.keys = [puppet.key, key]
    puppet.sign(claims(puppet), algorithm="ES256", key=key)
    assert finish(provider).subject == "dana-1"


def test_an_unknown_key_id_refreshes_the_keys(puppet: PuppetProvider, provider: Provider) -> None:
    puppet.sign(claims(puppet))
    finish(provider)
    key = RSAKey.generate_key(2048, {"kid": "second"})
    puppet.keys = [key]
    puppet.sign(claims(puppet), key=key)
    assert finish(provider).subject == "dana-1"
    assert puppet.asked.count("keys") == 2


def test_keys_of_unsupported_types_are_ignored(puppet: PuppetProvider, provider: Provider) -> None:
    assert isinstance(puppet.key, RSAKey)
    puppet.key_document = {"keys": [{"kty": "?"}, puppet.key.as_dict(private=False)]}
    puppet.sign(claims(puppet))
    assert finish(provider).subject == "dana-1"


def test_an_unknown_key_is_refused(puppet: PuppetProvider, provider: Provider) -> None:
    puppet.sign(claims(puppet), key=RSAKey.generate_key(2048, {"kid": "unknown"}))
    refused(provider)


def test_configuration_and_keys_are_cached_for_an_hour(
    puppet: PuppetProvider, provider: Provider, clock: FrozenClock
) -> None:
    puppet.sign(claims(puppet, exp=SECONDS + 2 * HOUR))
    for _ in range(3):
        finish(provider)
    assert puppet.asked.count(".well-known/openid-configuration") == 1
    clock.advance(HOUR)
    finish(provider)
    assert puppet.asked.count(".well-known/openid-configuration") == 2
    assert puppet.asked.count("keys") == 2


def test_a_provider_with_another_issuer_is_refused(
    puppet: PuppetProvider, provider: Provider
) -> None:
    puppet.metadata["issuer"] = "https://evil.example"
    with pytest.raises(UnavailableError, match="oidc_issuer"):
        provider.begin()


@pytest.mark.parametrize("document", ["not JSON", [], {}, {"keys": None}, {"keys": [{"kty": "?"}]}])
def test_an_invalid_key_set_is_an_error(
    puppet: PuppetProvider, provider: Provider, document: object
) -> None:
    puppet.sign(claims(puppet))
    puppet.key_document = document
    with pytest.raises((UnavailableError, RefusedIdentityError)):
        finish(provider)


@pytest.mark.parametrize("document", ["not JSON", [], {}])
def test_an_invalid_configuration_is_an_error(
    puppet: PuppetProvider, provider: Provider, document: object
) -> None:
    puppet.metadata_document = document
    with pytest.raises(UnavailableError):
        provider.begin()


@pytest.mark.parametrize(
    "answer",
    [("not JSON", 200), ("a gateway's page", 502), ({}, 500), ("", 429)],
)
def test_an_invalid_token_response_is_an_error(
    puppet: PuppetProvider, provider: Provider, answer: tuple[Claims | str, int]
) -> None:
    puppet.token = answer
    with pytest.raises(UnavailableError, match="does not respond"):
        finish(provider)


@pytest.mark.parametrize(
    "answer",
    [
        ({"error": "invalid_grant"}, 400),
        ({"access_token": "a", "token_type": "Bearer"}, 200),
        ({"access_token": "a", "token_type": "Bearer", "id_token": "x"}, 200),
        ({"access_token": "a", "token_type": "Bearer", "id_token": 5}, 200),
    ],
)
def test_a_response_without_an_id_token_is_refused(
    puppet: PuppetProvider, provider: Provider, answer: tuple[Claims | str, int]
) -> None:
    puppet.token = answer
    refused(provider)


def test_missing_claims_are_read_from_userinfo(puppet: PuppetProvider, provider: Provider) -> None:
    puppet.sign(claims(puppet, email=None, email_verified=None, groups=None))
    puppet.userinfo = {
        "sub": "dana-1",
        "email": "d@acme.example",
        "email_verified": "true",
        "groups": "a",
        "name": "Not Dana",
    }
    identity = finish(provider)
    assert (identity.email, identity.is_email_verified, identity.name) == (
        "d@acme.example",
        True,
        "Dana",
    )
    assert identity.groups == {"a"}


def test_userinfo_of_another_subject_is_refused(puppet: PuppetProvider, provider: Provider) -> None:
    puppet.sign(claims(puppet, groups=None))
    puppet.userinfo = {"sub": "eve", "groups": ["a"]}
    refused(provider)


def test_email_and_email_verified_come_from_the_same_source(
    puppet: PuppetProvider, provider: Provider
) -> None:
    """`email_verified` of the one must not vouch for the `email` of the other."""
    puppet.sign(claims(puppet, email_verified=None, groups=None))
    puppet.userinfo = {"sub": "dana-1", "email": "d@x.example", "email_verified": True}
    identity = finish(provider)
    assert (identity.email, identity.is_email_verified) == ("dana@acme.example", False)


def test_groups_may_be_nested_in_another_claim(
    settings: ServerSettings, puppet: PuppetProvider, clock: FrozenClock
) -> None:
    provider = connected(replace(settings, oidc_groups_claim="realm_access.roles"), clock)
    puppet.sign(claims(puppet, realm_access={"roles": ["gpu-users"]}))
    assert finish(provider).groups == {"gpu-users"}


def test_omitted_groups_refuse_the_sign_in_and_remove_nothing(
    puppet: PuppetProvider, provider: Provider
) -> None:
    """Entra ID names where to ask for the groups of who has too many: that is not 'none'."""
    puppet.sign(claims(puppet, groups=None, _claim_names={"groups": "src1"}))
    puppet.userinfo = {"sub": "dana-1"}
    with pytest.raises(RefusedIdentityError, match="more groups than"):
        finish(provider)


def test_the_client_secret_is_sent_by_the_supported_method(
    settings: ServerSettings, puppet: PuppetProvider, clock: FrozenClock
) -> None:
    for offered in (["client_secret_post"], ["client_secret_post", "client_secret_basic"], None):
        puppet.metadata["token_endpoint_auth_methods_supported"] = offered
        puppet.sign(claims(puppet))
        finish(connected(settings, clock))
    assert puppet.secrets_in == ["body", "header", "header"]


def test_a_public_client_sends_no_secret(
    settings: ServerSettings, puppet: PuppetProvider, clock: FrozenClock
) -> None:
    puppet.sign(claims(puppet))
    finish(connected(replace(settings, oidc_client_secret=""), clock))
    assert puppet.secrets_in == ["nowhere"]
