"""The agents of the site: their data folders, what they read, and what of it is known.

Each agent runs a script that writes numbered samples and a signal, and nothing else.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from collector.data_dir import load_identity
from core.atomic_files import replace_file
from tests.fixtures.polling import eventually

AGENTS = 20
DOCKER_AGENTS = 3
CONFIGURATION = """
portal_urls = ["{url}"]
data_dir = "{home}"
ca_file = "{authority}"
interval_seconds = 1
flush_interval_seconds = 1
heartbeat_interval_seconds = 3
executor = "{executor}"
docker_url = "{docker_url}"
log_level = "WARNING"
{no_plugins}
[[plugins.exec.programs]]
command = ["/bin/sh", "{folder}/source.sh", "{name}", "{folder}"]
"""
OTHER_PLUGINS = (
    "cpu memory swap load disk diskio network processes uptime sensors nvml gpu_processes amdgpu "
    "amdgpu_processes "
    "containers inventory speedtest"
)
# Its samples are numbered from 0 at each start; the last number of each start is in a file.
SOURCE = """
run=$(date +%s%N)
number=0
while :; do
    read -r round signal < "$2/signal-$1"
    echo "PUTVAL site/failures/gauge-$run interval=1 N:$number"
    echo "PUTVAL site/signal/gauge-$round interval=1 N:$signal"
    echo "$run $number" > "$2/count-$1"
    number=$((number + 1))
    sleep 1
done
"""


class Agents:
    """The data folders by name; the first agents run jobs on Docker.

    Args:
        folder: for what the scripts read and write.
        disk: for the data folders.
        count: of agents.
    """

    def __init__(self, folder: Path, disk: Path, *, count: int = AGENTS) -> None:
        self._folder = folder
        self.homes = {
            name: disk / name for name in (f"gpu-{number:02d}" for number in range(1, count + 1))
        }
        (folder / "source.sh").write_text(SOURCE)
        for name in self.homes:
            self.set_signal(name, 0)

    @property
    def names(self) -> list[str]:
        """Their names, in order."""
        return list(self.homes)

    def write_configurations(self, **values: object) -> None:
        """Write the files of all agents."""
        no_plugins = "\n".join(
            f"[plugins.{name}]\nenabled = false" for name in OTHER_PLUGINS.split()
        )
        for number, (name, home) in enumerate(self.homes.items()):
            home.mkdir()
            text = CONFIGURATION.format(
                **values,
                home=home,
                executor="docker" if number < DOCKER_AGENTS else "none",
                no_plugins=no_plugins,
                name=name,
                folder=self._folder,
            )
            (home / "agent.toml").write_text(text)

    def set_signal(self, name: str, value: int, *, round_name: str = "0") -> None:
        """Set the signal that an agent reads, on which a rule fires.

        Each round has an alert of its own: one that fires four times within an hour is flapping,
        and its messages are held back.
        """
        text = f"{round_name} {value}\n"
        replace_file(self._folder / f"signal-{name}", text.encode(), is_durable=False)

    def counts(self) -> Mapping[str, tuple[str, int]]:
        """Return of each agent the start of its script, and the last number that it has written."""
        return {name: eventually(partial(self._count, name)) for name in self.homes}

    def names_by_id(self) -> dict[str, str]:
        """Return the names of the appliances by their ids."""
        identities = {name: load_identity(home) for name, home in self.homes.items()}
        return {identity.appliance_id: name for name, identity in identities.items() if identity}

    def _count(self, name: str) -> tuple[str, int] | None:
        path = self._folder / f"count-{name}"
        words = path.read_text().split() if path.exists() else []
        return (words[0], int(words[1])) if len(words) == 2 else None
