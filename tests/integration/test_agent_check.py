"""`vedette agent check` at a real portal: an enrolled appliance is in order, a stranger is not."""

from pathlib import Path

from collector.identity import Identity, save_identity
from tests.house import make_house, serving


def test_an_enrolled_appliance_is_in_order_and_a_stranger_is_not(tmp_path: Path) -> None:
    house = make_house(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    with serving(house):
        secret = house.enrolment_secret("acme")
        enrolled = house.vedette("agent", "enroll", house.url, secret, "--data-dir", str(home))
        assert enrolled.returncode == 0, enrolled.stderr
        with (home / "agent.toml").open("a", encoding="utf-8") as file:
            file.write('executor = "none"\nbuffer_max_bytes = 1048576\n')

        in_order = house.vedette("agent", "check", "--data-dir", str(home))
        save_identity(home, Identity(appliance_id="x", tenant_id="acme", agent_token="stranger"))
        stranger = house.vedette("agent", "check", "--data-dir", str(home))

    assert in_order.returncode == 0, in_order.stdout + in_order.stderr
    assert [line.split()[0] for line in in_order.stdout.splitlines()] == ["ok"] * 7
    assert stranger.returncode == 1
    assert "this appliance is not taken" in stranger.stdout
