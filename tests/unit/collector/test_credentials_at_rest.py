"""The agent stores its desired state without what gives access to data and images."""

import msgspec

from collector.datasets.credentials import without_credentials
from protocol.attempts import AttemptSpec, DesiredState, RegistryToken


def test_tokens_of_attempts_are_not_stored() -> None:
    token = RegistryToken(host="registry.example", token="customer")
    spec = AttemptSpec(attempt_id="a", job_id="j", name="x", image="x", registry=token)
    stored = without_credentials(DesiredState(generation=1, attempts=[spec]))
    assert stored.attempts == [msgspec.structs.replace(spec, registry=None)]
