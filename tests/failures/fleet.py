"""The agents of several data folders in one process: `python -m tests.failures.fleet HOME...`."""

import sys
import threading
from pathlib import Path

from cli.agent_enroll import CONFIG_NAME
from cli.supervision import stop_event
from collector.agent import Agent
from collector.config import load_agent_config
from collector.data_dir import load_identity
from core.logs import configure_logging
from core.structs import describe_structs


def main() -> None:
    """Run them until SIGTERM."""
    configure_logging("WARNING", process="fleet")
    stop = stop_event()
    describe_structs()
    homes = [Path(argument) for argument in sys.argv[1:]]
    agents = [
        Agent(load_agent_config(home / CONFIG_NAME, data_dir=home), load_identity(home))
        for home in homes
    ]
    threads = [threading.Thread(target=agent.run, args=(stop,)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
