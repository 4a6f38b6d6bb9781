"""`/install`: the script and the packages, which hosts download before they have credentials."""

import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from flask import Flask

from core.settings import ServerSettings
from portal.installer.script import install_command, script_sha256
from portal.installer.wheelhouse import INDEX_NAME, REQUIREMENTS_NAME, Wheelhouse, wheelhouse_dir
from tests.fixtures.certificates import Authority
from tests.fixtures.shared_portal import Serve
from tests.unit.portal.conftest import Browser

WHEEL = "vedette-0.1.0-py3-none-any.whl"
REQUIREMENTS = b"vedette==0.1.0 --hash=sha256:00\n"
CONTENTS = Wheelhouse(
    version="0.1.0",
    pythons=["3.11", "3.12"],
    machines=["x86_64"],
    requirements_sha256=sha256(REQUIREMENTS).hexdigest(),
)


@pytest.fixture
def folder(settings: ServerSettings) -> Path:
    """A wheelhouse, beside which the data folder has a secret."""
    folder = wheelhouse_dir(settings)
    folder.mkdir(parents=True)
    (folder / WHEEL).write_bytes(b"a wheel")
    (folder / REQUIREMENTS_NAME).write_bytes(REQUIREMENTS)
    (folder / INDEX_NAME).write_bytes(msgspec.json.encode(CONTENTS))
    (settings.data_dir / "secret_key").write_text("secret")
    return folder


def run_script(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", "-s", "--", *arguments], input=text, capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("folder")
def test_whoever_is_not_signed_in_gets_the_script_and_may_cache_it(nobody: Browser) -> None:
    answer = nobody.get("/install")

    assert answer.status_code == 200
    assert answer.text.startswith("#!/bin/sh\n")
    assert "portal=http://portal.example\n" in answer.text
    assert CONTENTS.requirements_sha256 in answer.text
    assert answer.cache_control.public
    assert "Set-Cookie" not in answer.headers
    etag = {"If-None-Match": answer.headers["ETag"]}
    assert nobody.get("/install", headers=etag).status_code == 304


@pytest.mark.usefixtures("folder")
def test_shellcheck_has_nothing_to_say(nobody: Browser) -> None:
    program = Path(sys.executable).with_name("shellcheck")
    checked = subprocess.run(
        [program, "--shell=sh", "-"],
        input=nobody.get("/install").text,
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.stdout == ""


@pytest.mark.usefixtures("folder")
def test_packages_are_listed_and_downloaded_without_credentials(nobody: Browser) -> None:
    assert f'<a href="/install/wheels/{WHEEL}">' in nobody.get("/install/wheels/").text
    with nobody.get(f"/install/wheels/{WHEEL}") as wheel:
        assert wheel.data == b"a wheel"
    with nobody.get("/install/requirements.txt") as requirements:
        assert requirements.data == REQUIREMENTS


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "name",
    [
        "../secret_key",
        "..%2Fsecret_key",
        "%2e%2e/secret_key",
        INDEX_NAME,
        ".",
        "vedette.whl",
        "%00",
    ],
)
def test_nothing_but_wheels_is_served(nobody: Browser, name: str) -> None:
    answer = nobody.get(f"/install/wheels/{name}")

    assert answer.status_code in {302, 308, 404}
    assert b"secret" not in answer.data or answer.status_code == 302


def test_without_packages_the_script_says_what_the_operator_runs(nobody: Browser) -> None:
    answer = nobody.get("/install")

    ended = run_script(answer.text)

    assert ended.returncode == 1
    assert "vedette wheelhouse build" in ended.stderr
    assert nobody.get("/install/requirements.txt").status_code == 404
    assert nobody.get("/install/wheels/").status_code == 200


@pytest.mark.usefixtures("folder")
def test_the_checksum_is_that_of_the_script(app: Flask, nobody: Browser) -> None:
    with app.test_request_context():
        digest = script_sha256()

    assert digest == sha256(nobody.get("/install").data).hexdigest()


@pytest.mark.usefixtures("folder")
def test_the_help_needs_no_rights_and_names_every_option(nobody: Browser) -> None:
    text = nobody.get("/install").text

    shown = run_script(text, "--help")

    assert shown.returncode == 0
    for option in ("--name", "--again", "--no-service", "--uninstall", "--dry-run", "--data-dir"):
        assert option in shown.stdout


@pytest.mark.usefixtures("folder")
def test_an_unknown_option_is_named(nobody: Browser) -> None:
    refused = run_script(nobody.get("/install").text, "--dryrun")

    assert refused.returncode == 1
    assert "--dryrun" in refused.stderr


@pytest.mark.usefixtures("folder")
def test_a_private_ca_is_in_the_script_whose_checksum_the_command_compares(
    settings: ServerSettings, serve: Serve, app: Flask, tmp_path: Path
) -> None:
    own = Authority(tmp_path, "itself").certificate
    with app.test_request_context():
        assert install_command("vde_x") == (
            "curl -fsS http://portal.example/install | sudo sh -s -- vde_x"
        )
    private = serve(replace(settings, tls_certificate_file=own))

    with private.test_request_context():
        command, digest = install_command("vde_x"), script_sha256()
    text = private.test_client().get("/install").text

    assert own.read_text().strip() in text
    assert f'"{digest}  vedette-install" | sha256sum --check' in command
    assert command.endswith("sudo sh vedette-install vde_x")
