"""A made-up NVIDIA DGX H100 with eight busy GPUs and 96 cores, for a week in the agent's buffer.

`TICK` has what its plugins send at each tick: the series, how often it is there, and its fields.
A reading is its mean, as precise as it is written; `~` stands before its standard deviation, `*`
before the unit of the kernel or driver that it is a multiple of, `+` before its growth each tick.
Compression must not be flattered: every reading has noise of its own, plugins are read at instants
that jitter as a real agent's do, seven GPUs train and another serves all the time.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from random import Random

from collector.buffering.frames import Frame
from core.clock import to_ns

JITTER_NS = 4_000_000
_SEED = 3
# An indented line belongs to the series above; a series is there as often as the numbers behind it.
TICK = r"""
cpu
  usage_percent=52.32~2 user_percent=44.57~2 nice_percent=0.0 system_percent=7.63~1
  iowait_percent=0.00~0.2 irq_percent=0.0 softirq_percent=0.10~0.2 steal_percent=0.0
  guest_percent=0.0 idle_percent=47.53~2
cpu_core,core={0} 96
  usage_percent=52.32~25 user_percent=44.57~25 nice_percent=0.0 system_percent=7.63~4
  iowait_percent=0.00~0.2 irq_percent=0.0 softirq_percent=0.10~0.2 steal_percent=0.0
  guest_percent=0.0 idle_percent=47.53~25
memory
  total_bytes=2199023255552 used_bytes=403082862444~8e7 available_bytes=1795940393108~8e7
  free_bytes=1672173510015~9e7 cached_bytes=123766883093~2e8 buffers_bytes=3258880000~8e5
  slab_bytes=17835474944~8e5*4096 shared_bytes=1267298304~8e5*4096
  dirty_bytes=163840000~16e6*4096 used_percent=18.33~0.02
swap
  total_bytes=0 used_bytes=0 free_bytes=0 cached_bytes=0 in_bytes_per_second=0.0
  out_bytes_per_second=0.0
load
  load1=49.09~2 load5=48.41~1 load15=48.27~0.6 cpu_count=96
uptime
  uptime_seconds=4000000+10
processes
  total=2082~20 running=35~15 blocked=1~1 sleeping=1427~10 idle=620 stopped=0 zombies=0
  threads=9247~120 forks_per_second=14.525~30 context_switches_per_second=314204.339~2e4
disk,mount=/raid{0},device=/dev/md{0} 3
  total_bytes=1979029913600 used_bytes=811451416576+12288000 free_bytes=1167578497024+-12288000
  used_percent=41.0 inodes_total=120790400 inodes_used=1230004+1 inodes_free=119560396+-1
  inodes_used_percent=1.02
diskio,device=nvme{0}n1 12
  read_bytes_per_second=24002337.964~5e6 written_bytes_per_second=40286.895~8e3
  reads_per_second=101.081~20 writes_per_second=0.1~0.1 busy_percent=1.0~0.2 in_flight=1~1
network,interface=ibp{0}s0 7
  received_bytes_per_second=72042306.118~1e7 sent_bytes_per_second=5840514.712~1e6
  received_packets_per_second=56885.602~1e4 sent_packets_per_second=7198.259~1e3
  errors_per_second=0.0 drops_per_second=0.0
sensor,chip=coretemp0,sensor=core_{0} 34
  temperature_celsius=54.0~4*1 critical_celsius=98.0
sensor,chip=ipmi,sensor=fan{0} 12
  fan_rpm=7680~180*60
gpu,GPU,model=NVIDIA\ H100\ 80GB\ HBM3,JOB 8
  utilization_percent=78~8 memory_utilization_percent=43~6 encoder_utilization_percent=0
  decoder_utilization_percent=1~2 memory_total_bytes=85362475008 memory_reserved_bytes=635764736
  memory_used_bytes=51053873049~3e7*2097152 memory_free_bytes=33672837223~3e7*2097152
  memory_used_percent=59.81~0.03 temperature_celsius=52~2 memory_temperature_celsius=62~2
  slowdown_celsius=87 shutdown_celsius=92 max_operating_celsius=85 power_watts=526.815~30
  power_limit_watts=700.0 power_limit_default_watts=700.0 power_limit_max_watts=700.0
  energy_joules=3022253.907+5268.15~300 sm_clock_hertz=1950000000~3e7*15000000
  memory_clock_hertz=2619000000 graphics_clock_hertz=1950000000~3e7*15000000
  video_clock_hertz=1545000000~3e7*15000000 sm_clock_max_hertz=1980000000
  memory_clock_max_hertz=2619000000 performance_state=0 throttled=0 throttled_by_heat=0
  throttled_by_power=0~0.5 throttled_by_hardware=0 clocks_idle=0 clocks_set_by_user=0
  throttle_reasons=2~2*4 pcie_generation=5 pcie_generation_max=5 pcie_width=16
  pcie_width_max=16 pcie_received_bytes_per_second=1900000000~1.2e9*1024
  pcie_sent_bytes_per_second=320000000~2e8*1024 pcie_replays=0 nvlinks=18 nvlinks_active=18
  nvlink_received_bytes_per_second=130416907616~2e10
  nvlink_sent_bytes_per_second=130053483781~2e10 nvlink_errors=0 ecc_enabled=1
  ecc_corrected_volatile=0 ecc_uncorrected_volatile=0 ecc_corrected_aggregate=3
  ecc_uncorrected_aggregate=0 remapped_rows_corrected=0 remapped_rows_uncorrected=0
  remapped_rows_pending=0 remapped_rows_failed=0 lost=0 mig_enabled=0 compute_mode=0
  persistence_mode=1
gpu_link,GPU,link={1},JOB 8 18
  active=1 received_bytes_per_second=7369349812~1e9 sent_bytes_per_second=7160070628~1e9
  crc_errors=0 replay_errors=0 recovery_errors=0
gpu_process,GPU,owner=job,JOB,container=674eaeb8-b{0:02} 8
  processes=1 memory_used_bytes=50999347097~3e7*2097152 utilization_percent=78~8
gpu_health,GPU,JOB 8
  state=0 findings=0
container,container=674eaeb8-b{0:02},image=nvcr.io/nvidia/pytorch:24.10-py3,JOB 8
  read_bytes_per_second=30000000.236~6e6 written_bytes_per_second=3995071.683~8e5
  received_bytes_per_second=5059932.862~1e6 sent_bytes_per_second=807334.059~16e4
  cpu_percent=600.34~40 memory_bytes=65331179520~8e7*4096 memory_limit_bytes=214748364800
  processes=92~2 restarts=0
containers
  running=8 paused=0 exited=3 created=0 restarting=0 dead=0
plugin,plugin=plugin{0} 14
  duration_seconds=0.001009~0.0005 samples=100 errors=0 timeouts=0
agent
  buffered_bytes=40255+9100~1200 buffered_points=1320+362 backlog_points=1320+362
  dropped_points=0 dropped_by_age_points=0 dropped_by_size_points=0 damaged_bytes=0
  sent_points=0 send_failures=1+1 undeliverable_lines=0 gather_failures=0
  cpu_percent=1.465~0.1 resident_bytes=58045056~8e3*4096
""".replace("GPU,", "gpu={0},uuid=GPU-674eaeb8-b7c2-bccf-b206-d60c33515f{0:02},").replace(
    "JOB", "job=01a1fe99-3165-71ca-a743-dc2375973c{0:02}"
)
_READING = re.compile(
    r"(?P<name>\w+)=(?P<mean>[\d.]+)(\+(?P<growth>[-\d.]+))?(~(?P<spread>[\d.e+]+))?"
    r"(\*(?P<unit>\d+))?"
)


@dataclass(frozen=True, slots=True)
class TickTemplate:
    """The lines of a tick without their times.

    Attributes:
        lines: each with its time in nanoseconds, counted from the tick's own.
    """

    lines: tuple[tuple[bytes, int], ...]
    samples: int

    def frame(self, at: datetime) -> Frame:
        """Return the tick as it would be read at an instant."""
        tick_ns = to_ns(at)
        payload = b"\n".join(b"%s %d" % (line, tick_ns + offset) for line, offset in self.lines)
        return Frame(payload, len(self.lines), tick_ns + max(offset for _, offset in self.lines))


def tick_templates(count: int) -> list[TickTemplate]:
    """Return so many distinct ticks of the appliance, one after the other."""
    random = Random(_SEED)  # noqa: S311 - noise, not a secret
    series = list(_series())
    samples = sum(len(indexes) * len(readings) for _, indexes, readings in series)

    def lines(tick: int) -> Iterator[tuple[bytes, int]]:
        for head, indexes, readings in series:
            offset_ns = 1_000 * random.randrange(JITTER_NS // 1_000)
            for index in indexes:
                fields = ",".join(_drawn(reading, random, tick) for reading in readings)
                yield f"{head.format(*index)} {fields}".encode(), offset_ns

    return [TickTemplate(tuple(lines(tick)), samples) for tick in range(count)]


def _series() -> Iterator[tuple[str, list[tuple[int, ...]], list[re.Match[str]]]]:
    """Yield the series of `TICK`: measurement and tags, the numbers in them, the readings."""
    for text in re.split(r"\n(?! )", TICK.strip()):
        first, _, fields = text.partition("\n")
        head, *counts = re.split(r"(?<!\\) ", first)
        indexes = itertools.product(*(range(int(count)) for count in counts))
        yield head, list(indexes), list(_READING.finditer(fields))


def _drawn(reading: re.Match[str], random: Random, tick: int) -> str:
    """Return a field at a tick as line protocol."""
    value = float(reading["mean"]) + tick * float(reading["growth"] or 0)
    if reading["spread"]:
        value = max(0.0, random.gauss(value, float(reading["spread"])))
    if unit := int(reading["unit"] or 0):
        value = unit * round(value / unit)
    _, point, decimals = reading["mean"].partition(".")
    text = f"{round(value, len(decimals))}" if point else f"{round(value)}i"
    return f"{reading['name']}={text}"
