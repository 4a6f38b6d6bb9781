"""A running job as its user works with it: terminal in the browser and the shell, and files.

Server, agent and engine are real, and so are Chromium and the pseudo terminal of the command line.
"""

import os
import pty
import re
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.deployment import BOB, Deployment, agent_of, api_token, make_deployment, serving
from tests.e2e.conftest import STEP_MS, screenshot
from tests.e2e.walking import NARROW_DARK, NARROW_LIGHT, WIDE_DARK, WIDE_LIGHT, put_on, sign_in
from tests.fixtures.docker_engine import DockerEngine
from tests.fixtures.file_modes import no_umask
from tests.integration.test_jobs import QUICK, Portal, enroll

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.needs_docker,
    pytest.mark.needs_chromium,
    pytest.mark.timeout(600),
]

MEBIBYTE = 2**20
TRAINING = (
    "mkdir -p /work && cd /work && seq 3 > epochs;"
    " printf '\\033[31mwarning: \\033[0mhot\\n' >&2; while :; do echo training; sleep 1; done"
)


@dataclass
class Site:
    """A deployment with a running job of Bob's."""

    deployment: Deployment
    portal: Portal
    job_id: str
    token: str

    @property
    def environ(self) -> dict[str, str]:
        return self.deployment.environ(
            {"VEDETTE_URL": self.deployment.url, "VEDETTE_TOKEN": self.token, "TERM": "xterm"}
        )


@pytest.fixture(scope="module")
def site(docker_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("deployment")
    deployment, home = make_deployment(folder), folder / "agent"
    with no_umask(), serving(deployment):
        enroll(deployment, home, "host-1")
        config = f'{QUICK}docker_url = "{docker_engine.url}"\n'
        with agent_of(deployment, home=home, toml=config):
            portal = Portal(deployment)
            portal.wait_for_appliance("docker")
            job_id = portal.submit(
                name="train",
                image=docker_engine.image,
                command=["sh", "-c", TRAINING],
                memory_bytes=64 * MEBIBYTE,
            )
            portal.wait_for_state(job_id, "running")
            yield Site(deployment, portal, job_id, api_token(deployment, BOB))


@pytest.fixture
def page(site: Site, chromium: Browser) -> Iterator[Page]:
    problems: list[str] = []
    context = chromium.new_context(base_url=site.deployment.url)
    context.set_default_timeout(STEP_MS)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    sign_in(page, BOB)
    yield page
    context.close()
    assert problems == []


def test_the_log_has_colors_streams_times_and_a_search(site: Site, page: Page) -> None:
    page.goto(f"/jobs/{site.job_id}")
    log = page.locator("[data-log-text]")
    warning = log.locator(".vd-stderr", has_text="warning: hot")
    expect(warning.locator("span > span").first).to_have_css("color", "rgb(255, 123, 114)")
    training = log.locator(".vd-stdout", has_text="training")
    count = training.count()
    expect(training.nth(count + 1)).to_be_attached()  # it goes on by itself
    page.get_by_label("Stream").select_option("stderr")
    expect(warning).to_be_visible()
    expect(training.first).to_be_hidden()
    page.get_by_label("Stream").select_option("")
    expect(warning.locator("time")).to_be_hidden()
    page.get_by_label("Times").check()
    expect(warning.locator("time")).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
    page.get_by_label("Search the log").fill("WARNING")
    expect(page.locator("[data-log-count]")).to_have_text("1 line")
    expect(page.locator("[data-log-matches]")).to_contain_text("warning: hot")
    screenshot(page, "log-search")


def test_a_terminal_in_the_browser(site: Site, page: Page) -> None:
    page.goto(f"/jobs/{site.job_id}")
    page.get_by_role("link", name="Terminal").click()
    rows = page.locator(".xterm-rows")
    expect(page.locator("[data-shell-state]")).to_have_text("Connected")
    page.keyboard.type("cd /work; cat epochs; echo sum $((40 + 2))\n")
    expect(rows).to_contain_text("sum 42")
    page.keyboard.type(
        "printf '\\033[31mred \\033[38;2;90;200;250mtrue color\\033[0m\\n'; ls -la /\n"
    )
    expect(rows).to_contain_text("work")
    for look in (WIDE_LIGHT, WIDE_DARK, NARROW_LIGHT, NARROW_DARK):
        put_on(page, look)
        screenshot(page, f"terminal-{look.width}-{look.theme}")
    page.keyboard.type("clear; stty size\n")
    expect(rows).to_contain_text("44 ")
    page.keyboard.type("exit 5\n")
    expect(page.locator("[data-shell-state]")).to_have_text("Ended with exit code 5")
    screenshot(page, "terminal-ended")
    page.get_by_role("button", name="Reconnect").click()
    expect(page.locator("[data-shell-state]")).to_have_text("Connected")


def test_a_terminal_and_commands_in_a_shell(site: Site) -> None:
    run = site.deployment.process
    result = run(
        "job", "exec", "train", "sh", "-c", "echo out; echo err >&2; exit 7", environ=site.environ
    )
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", 7)
    dashes = site.deployment.process(
        "job", "exec", "train", "--", "echo", "--", "-n", environ=site.environ
    )
    assert (dashes.stdout, dashes.returncode) == ("-- -n\n", 0)
    empty = site.deployment.process("job", "exec", "train", "--", environ=site.environ)
    assert (empty.returncode, "COMMAND" in empty.stderr) == (2, True)
    keyboard, terminal = pty.openpty()
    argv = [sys.executable, "-m", "cli.main", "job", "shell", "train"]
    with Popen(argv, env=site.environ, stdin=terminal, stdout=terminal, stderr=terminal) as shell:
        os.close(terminal)
        os.write(keyboard, b"echo $((40 + 2)) in $0; exit 3\n")
        seen = b""
        with suppress(OSError):  # Linux says so at the end
            while select.select([keyboard], [], [], 60)[0]:
                seen += os.read(keyboard, 4096)
        assert shell.wait(60) == 3
    os.close(keyboard)
    assert b"42 in ash" in seen


def test_files_are_copied_with_the_command(site: Site, tmp_path: Path) -> None:
    run, environ = site.deployment.process, site.environ
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.py").write_text("a = 1\n")
    (source / "data.bin").write_bytes(os.urandom(3 * MEBIBYTE))
    assert run("job", "cp", str(source), "train:/work", environ=environ).returncode == 0
    (source / "a.py").write_text("a = 2\n")
    (source / "data.bin").unlink()
    assert run("job", "cp", str(source), "train:/work/", environ=environ).returncode == 0
    assert (
        run("job", "cp", str(source / "a.py"), "train:/work/b.py", environ=environ).returncode == 0
    )
    linked = ("sh", "-c", "ln -s /etc/hosts /work/src/hosts && ln -s a.py /work/src/latest")
    assert run("job", "exec", "train", *linked, environ=environ).returncode == 0
    back = tmp_path / "back"
    copied = run("job", "cp", "train:/work/src", str(back), environ=environ)
    assert copied.returncode == 0, copied.stderr
    assert {path.name for path in back.iterdir()} == {"a.py", "data.bin", "latest"}
    assert "Skipped src/hosts: it links to /etc/hosts" in copied.stderr
    alone = run("job", "cp", "train:/work/src/hosts", str(back), environ=environ)
    assert (alone.returncode, "was not copied" in alone.stderr) == (1, True)
    assert (back / "a.py").read_text() == "a = 2\n"
    assert (back / "data.bin").stat().st_size == 3 * MEBIBYTE
    assert run("job", "cp", "train:/work/b.py", str(back), environ=environ).returncode == 0
    assert (back / "b.py").read_text() == "a = 2\n"
    archive = run("job", "cp", "train:/work/b.py", "-", environ=environ)
    assert "a = 2" in archive.stdout
    missing = run("job", "cp", "train:/work/none", str(back), environ=environ)
    assert missing.returncode == 1
    assert "/work/none" in missing.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"src", "back"}
