"""A new configuration for an agent that runs: what takes effect at once, and what does not."""

from dataclasses import fields, replace

from collector.config import AgentConfig

# What nothing was built from at the start, or what can be exchanged.
LIVE_KEYS = frozenset(
    {
        "interval_seconds",
        "own_metrics_interval_seconds",
        "flush_interval_seconds",
        "heartbeat_interval_seconds",
        "attempts_interval_seconds",
        "poll_wait_seconds",
        "log_level",
        "plugins",
    }
)


def live_part(running: AgentConfig, wanted: AgentConfig) -> AgentConfig:
    """Return the running configuration with what can change at once."""
    return replace(running, **{key: getattr(wanted, key) for key in LIVE_KEYS})


def changed_keys(running: AgentConfig, wanted: AgentConfig) -> list[str]:
    """Return the keys that differ, in the order of the file's documentation."""
    return [
        field.name
        for field in fields(AgentConfig)
        if getattr(running, field.name) != getattr(wanted, field.name)
    ]


def keys_for_restart(running: AgentConfig, wanted: AgentConfig) -> list[str]:
    """Return the keys that differ and take effect after a restart only."""
    return [key for key in changed_keys(running, wanted) if key not in LIVE_KEYS]
