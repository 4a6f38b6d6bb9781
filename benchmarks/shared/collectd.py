"""collectd as the agent's peer: the same metrics at the same interval, sent by write_http.

It has its defaults, but its plugins leave out what the agent's leave out by default (file systems
without a disk, loop devices, ...), so that both read as much.
"""

import re
from pathlib import Path

from plugins.registry import load_plugin_class
from tests.servers import require_program

READ_PLUGINS = (
    *("cpu", "memory", "swap", "load", "df", "disk", "interface", "processes", "uptime"),
    *("contextswitch", "sensors"),
)
# Of collectd's plugins and options, the agent's plugin and setting that leave out the same.
LEFT_OUT = {
    ("df", "FSType"): ("disk", "skip_file_systems"),
    ("df", "MountPoint"): ("disk", "skip_mounts"),
    ("disk", "Disk"): ("diskio", "skip_devices"),
    ("interface", "Interface"): ("network", "skip_interfaces"),
}
CONFIGURATION = """Hostname "bench"
FQDNLookup false
BaseDir "{home}"
PIDFile "{home}/collectd.pid"
Interval 1
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
  ReportInodes true
  ValuesPercentage true
</Plugin>
{left_out}
LoadPlugin write_http
<Plugin write_http>
  <Node "sink">
    URL "{sink_url}"
    Format "JSON"
    StoreRates true
  </Node>
</Plugin>
"""


def collectd_command(home: Path, *, sink_url: str) -> list[str]:
    """Write a configuration into `home` and return the command that runs it in the foreground."""
    program, path = require_program("collectd", package="collectd-core"), home / "collectd.conf"
    loads = "\n".join(f"LoadPlugin {name}" for name in READ_PLUGINS)
    left_out = "\n".join(
        f'<Plugin {plugin}>\n  IgnoreSelected true\n  {option} "{_regex(pattern)}"\n</Plugin>'
        for (plugin, option), (ours, setting) in LEFT_OUT.items()
        for pattern in getattr(load_plugin_class(ours).config_class(), setting)
    )
    home.mkdir()
    path.write_text(
        CONFIGURATION.format(home=home, loads=loads, left_out=left_out, sink_url=sink_url),
        encoding="utf-8",
    )
    return [program, "-f", "-C", str(path)]


def _regex(pattern: str) -> str:
    """Return collectd's notation of a shell pattern, such as `/^loop.*$/` of `loop*`."""
    wildcards = {"*": ".*", "?": "."}
    regex = "".join(wildcards.get(letter, re.escape(letter)) for letter in pattern)
    return f"/^{regex}$/".replace("\\", "\\\\")
