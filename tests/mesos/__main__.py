"""`python -m tests.mesos`: a whole Mesos site to try Vedette with, until Ctrl-C."""

import argparse
from threading import Event

from tests.mesos.agent import agent_app
from tests.mesos.chronos import Chronos, chronos_app
from tests.mesos.cluster import Cluster
from tests.mesos.marathon import Marathon
from tests.mesos.marathon_api import marathon_app
from tests.mesos.metronome import Metronome, metronome_app
from tests.mesos.serving import Secured, Server


def main() -> None:
    """Start the servers and say where they listen."""
    options = _parser().parse_args()
    cluster = Cluster(
        options.docker,
        cpus=options.cpus,
        mem=options.mem,
        gpus=options.gpus,
        hostname=options.hostname,
    )
    apps = {
        "Marathon": (options.marathon, marathon_app(Marathon(cluster, version=options.version))),
        "Metronome": (options.metronome, metronome_app(Metronome(cluster))),
        "Chronos": (
            options.chronos,
            chronos_app(Chronos(cluster, generation=options.chronos_generation)),
        ),
        "Mesos agent": (options.agent, agent_app(cluster)),
    }
    servers = []
    for name, (port, app) in apps.items():
        secured = Secured(app, basic=options.basic, token=options.token)
        servers.append(Server(secured, port).start())
        print(f"{name:<12} {servers[-1].url}", flush=True)  # noqa: T201 - it is a program
    try:
        Event().wait()
    except KeyboardInterrupt:
        cluster.close()
        for server in servers:
            server.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mesos", description=main.__doc__)
    parser.add_argument("--docker", default="unix:///var/run/docker.sock", metavar="URL")
    parser.add_argument("--marathon", type=int, default=8080, metavar="PORT")
    parser.add_argument("--metronome", type=int, default=9000, metavar="PORT")
    parser.add_argument("--chronos", type=int, default=4400, metavar="PORT")
    parser.add_argument("--agent", type=int, default=5051, metavar="PORT")
    parser.add_argument("--version", default="1.8.222", help="Marathon's, 1.4 to 1.10")
    parser.add_argument("--chronos-generation", type=int, choices=[2, 3], default=3)
    parser.add_argument("--cpus", type=float, default=8)
    parser.add_argument("--mem", type=float, default=16_384, help="MiB")
    parser.add_argument("--gpus", type=int, default=0, help="how many the agent offers")
    parser.add_argument("--hostname", default="localhost", help="the agent's, for constraints")
    parser.add_argument("--basic", default="", metavar="USER:PASSWORD")
    parser.add_argument("--token", default="", help="of DC/OS")
    return parser


if __name__ == "__main__":
    main()
