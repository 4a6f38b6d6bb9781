"""Images of the private registry are told from others by its host, an IPv6 address as well."""

from pathlib import Path

import pytest

from core.settings import ServerSettings
from jobqueue.executors.registry_token import CurrentRegistryToken
from jobqueue.images.tokens import RegistryTokens
from protocol.attempts import RegistryToken


@pytest.mark.parametrize("host", ["registry.example", "registry.example:5000", "[::1]:5000"])
def test_only_its_images_are_pulled_with_its_token(tmp_path: Path, host: str) -> None:
    settings = ServerSettings(data_dir=tmp_path, registry_url=f"https://{host}")
    tokens = RegistryTokens(settings)
    digest = "sha256:" + "0" * 64
    assert tokens.host == host
    for image in ("acme/a", "acme/a:1", f"acme/a@{digest}", f"acme/a:1@{digest}"):
        assert tokens.repository_of(f"{host}/{image}") == "acme/a"
        assert tokens.repository_of(image) is None
        assert tokens.repository_of(f"[::2]:5000/{image}") is None
    token = CurrentRegistryToken()
    token.set(RegistryToken(host=host, token="t"))
    assert token.credentials_for(f"{host}/acme/a:1") == {"registrytoken": "t"}
    assert token.credentials_for("[::2]:5000/acme/a:1") is None
