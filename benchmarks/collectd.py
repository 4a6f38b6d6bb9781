"""collectd as the agent's peer: the same vital signs at the same interval, sent by write_http.

Its plugins leave out what the agent's leave out by default (file systems without a disk, loop
devices, ...), so that both read as much.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import BenchmarkError, require_program
from plugins.registry import load_plugin_class

PLUGIN_DIRS = ("/usr/lib/collectd", "/usr/lib64/collectd", "/usr/lib/x86_64-linux-gnu/collectd")
TYPES_DB = Path("/usr/share/collectd/types.db")
READ_PLUGINS = (
    "cpu",
    "memory",
    "swap",
    "load",
    "df",
    "disk",
    "interface",
    "processes",
    "uptime",
    "contextswitch",
    "sensors",
)


def collectd_command(home: Path, *, sink_url: str, interval_seconds: float) -> list[str]:
    """Write a configuration into `home` and return the command that runs it in the foreground.

    Raises:
        BenchmarkError: collectd or its write_http is missing.
    """
    program = require_program("collectd", package="collectd-core")
    home.mkdir(parents=True, exist_ok=True)
    path = home / "collectd.conf"
    path.write_text(
        configuration(home, sink_url=sink_url, interval_seconds=interval_seconds), encoding="utf-8"
    )
    return [program, "-f", "-C", str(path)]


def configuration(home: Path, *, sink_url: str, interval_seconds: float) -> str:
    """Return collectd's configuration: its defaults but for what to read and where to send."""
    loads = "\n".join(f"LoadPlugin {name}" for name in READ_PLUGINS)
    return f"""Hostname "bench"
FQDNLookup false
BaseDir "{home}"
PIDFile "{home}/collectd.pid"
PluginDir "{_plugin_dir()}"
TypesDB "{TYPES_DB}"
Interval {interval_seconds:g}
LoadPlugin logfile
<Plugin logfile>
  LogLevel notice
  File "{home}/collectd.log"
</Plugin>
{loads}
<Plugin cpu>
  ReportByCpu true
  ReportByState true
  ValuesPercentage true
</Plugin>
<Plugin df>
{_ignored("FSType", _skipped("disk", "skip_file_systems"))}
{_ignored("MountPoint", _skipped("disk", "skip_mounts"))}
  IgnoreSelected true
  ReportInodes true
  ValuesPercentage true
</Plugin>
<Plugin disk>
{_ignored("Disk", _skipped("diskio", "skip_devices"))}
  IgnoreSelected true
</Plugin>
<Plugin interface>
{_ignored("Interface", _skipped("network", "skip_interfaces"))}
  IgnoreSelected true
</Plugin>
LoadPlugin write_http
<Plugin write_http>
  <Node "sink">
    URL "{sink_url}"
    Format "JSON"
    StoreRates true
  </Node>
</Plugin>
"""


def shell_pattern_as_regex(pattern: str) -> str:
    """Return collectd's notation of a shell pattern, such as `/^loop.*$/` of `loop*`."""
    wildcards = {"*": ".*", "?": "."}
    regex = "".join(wildcards.get(letter, re.escape(letter)) for letter in pattern)
    return f"/^{regex}$/".replace("\\", "\\\\")


def _plugin_dir() -> str:
    for folder in PLUGIN_DIRS:
        if (Path(folder) / "write_http.so").exists():
            return folder
    raise BenchmarkError(
        "collectd's write_http.so is missing: install the Debian packages collectd-core, libyajl2 "
        "and libsensors5."
    )


def _skipped(plugin: str, setting: str) -> Sequence[str]:
    """Return what the agent's plugin leaves out by default."""
    return tuple(getattr(load_plugin_class(plugin).config_class(), setting))


def _ignored(option: str, patterns: Sequence[str]) -> str:
    return "\n".join(f'  {option} "{shell_pattern_as_regex(pattern)}"' for pattern in patterns)
