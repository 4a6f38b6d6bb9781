"""Contract servers of Marathon, Chronos, Metronome and a Mesos agent, over real containers.

No Mesos can be installed for tests, so these programs answer as the public contracts of the APIs
say: they keep real state and run every task as a container on a Docker engine. Start them by hand:

    python -m tests.mesos --docker unix:///var/run/docker.sock --gpus 2
"""
