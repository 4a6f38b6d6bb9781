"""`vedette agent`: the token may come through standard input; a hang-up reloads the settings."""

import signal
import sys
from pathlib import Path

from collector.data_dir import Identity, load_identity, save_identity
from collector.health.gpus import KnownGPU, KnownGPUs
from plugins.registry import plugin_names
from tests.fixtures.in_process import Result, run_vedette
from tests.fixtures.polling import eventually
from tests.fixtures.recording_portal import AGENT_TOKEN, ENROLL_TOKEN, RecordingPortal
from tests.servers import running


def vedette_agent(*arguments: str, stdin: str = "") -> Result:
    return run_vedette("agent", *arguments, stdin=stdin)


def test_the_token_is_read_from_standard_input(tmp_path: Path) -> None:
    with RecordingPortal() as portal:
        result = vedette_agent(
            "enroll", portal.url, "-", "--data-dir", str(tmp_path), stdin=f"{ENROLL_TOKEN}\n"
        )
        [request] = portal.recording.enrollments

    assert result.returncode == 0, result.stderr
    assert request.token == ENROLL_TOKEN
    assert load_identity(tmp_path) is not None


def test_an_empty_standard_input_is_no_token(tmp_path: Path) -> None:
    result = vedette_agent("enroll", "http://127.0.0.1:9", "-", "--data-dir", str(tmp_path))

    assert result.returncode == 1
    assert "standard input" in result.stderr


def test_checking_a_configuration_reports_all_errors(tmp_path: Path) -> None:
    config_path = tmp_path / "other.toml"
    config_path.write_text("intervall_seconds = 5\n", encoding="utf-8")

    result = vedette_agent("check", "--offline", str(config_path))

    assert result.returncode == 1
    assert "portal_urls is missing" in result.stderr
    assert "did you mean interval_seconds?" in result.stderr


def test_sighup_reloads_the_configuration(tmp_path: Path) -> None:
    log_path = tmp_path / "agent.log"
    with RecordingPortal() as portal:
        settings = f'portal_urls = ["{portal.url}"]\ndata_dir = "{tmp_path}"\nexecutor = "none"\n'
        only_uptime = "".join(
            f"[plugins.{name}]\nenabled = {str(name == 'uptime').lower()}\n"
            for name in plugin_names()
            if not name.startswith("simulated")
        )
        config_path = tmp_path / "agent.toml"
        config_path.write_text(settings + only_uptime, encoding="utf-8")
        identity = Identity(appliance_id="a", tenant_id="acme", agent_token=AGENT_TOKEN)
        save_identity(tmp_path, identity)
        command = [sys.executable, "-m", "cli.main", "agent", "run", "--data-dir", str(tmp_path)]
        with running(command, log_path=log_path) as agent:
            eventually(lambda: measurements(portal) >= {"uptime"})

            config_path.write_text("intervall_seconds = 5\n", encoding="utf-8")
            agent.send_signal(signal.SIGHUP)
            eventually(lambda: "The old configuration stays" in log_path.read_text())

            config_path.write_text(
                settings + "flush_interval_seconds = 0.1\nbuffer_max_bytes = 1048576\n",
                encoding="utf-8",
            )
            agent.send_signal(signal.SIGHUP)
            eventually(lambda: measurements(portal) >= {"uptime", "memory", "load"})

    log = log_path.read_text(encoding="utf-8")
    assert "did you mean interval_seconds?" in log
    assert "restart the agent to apply: buffer_max_bytes" in log


def measurements(portal: RecordingPortal) -> set[str]:
    with portal.recording.lock:
        return {line.partition(" ")[0].partition(",")[0] for line in portal.recording.lines}


def test_accepting_gpus_names_those_that_the_agent_will_forget(tmp_path: Path) -> None:
    save_identity(
        tmp_path, Identity(appliance_id="appliance-1", tenant_id="acme", agent_token=AGENT_TOKEN)
    )
    remembered = KnownGPUs(tmp_path)
    gone, here = (
        KnownGPU(uuid=f"GPU-{index}", index=index, model="NVIDIA H100", has_nvlinks=False)
        for index in range(2)
    )
    remembered.update([gone, here])
    remembered.update([here])
    remembered.save()

    result = vedette_agent("accept-gpus", "--data-dir", str(tmp_path))

    assert result.returncode == 0, result.stderr
    assert "Removed GPU 0 (NVIDIA H100, GPU-0)." in result.stdout
    assert "GPU-1" not in result.stdout
    assert KnownGPUs(tmp_path).take_acceptance()


def test_accepting_gpus_is_for_enrolled_appliances(tmp_path: Path) -> None:
    result = vedette_agent("accept-gpus", "--data-dir", str(tmp_path))

    assert result.returncode == 1
    assert "has no identity" in result.stderr


def test_everything_follows_the_data_dir_of_the_command(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    with RecordingPortal() as portal:
        save_identity(folder, Identity(appliance_id="a", tenant_id="t", agent_token=AGENT_TOKEN))
        settings = f'portal_urls = ["{portal.url}"]\nexecutor = "none"\n'
        (folder / "agent.toml").write_text(settings, encoding="utf-8")
        argv = [sys.executable, "-m", "cli.main", "agent", "run", "--data-dir", str(folder)]
        with running(argv, log_path=tmp_path / "agent.log"):
            eventually(lambda: portal.recording.heartbeats)
            files = {path.name for path in folder.iterdir()}

    assert {"agent.lock", "buffer", "inventory.json"} <= files


def test_a_configuration_with_another_data_dir_is_refused(tmp_path: Path) -> None:
    folder, other = tmp_path / "agent", tmp_path / "other"
    save_identity(folder, Identity(appliance_id="a", tenant_id="t", agent_token=AGENT_TOKEN))
    settings = f'portal_urls = ["http://127.0.0.1:9"]\ndata_dir = "{other}"\n'
    (folder / "agent.toml").write_text(settings, encoding="utf-8")

    results = [
        vedette_agent(*arguments, "--data-dir", str(folder))
        for arguments in (["run"], ["check", "--offline"])
    ]

    for result in results:
        assert result.returncode == 1
        assert f"data_dir = '{other}' is not the folder of --data-dir" in result.stderr
        assert f"run with --data-dir {other}" in result.stderr
    assert not other.exists()
