"""The declared metrics: measurements, tags and fields of docs/metrics.md, all of them numbers.

Readings of our plugins have these names, so a store may keep the samples of all tenants together.
Whatever else a sender names is its tenant's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from timeseries.ranges import Range, range_of


@dataclass(frozen=True, slots=True)
class Declared:
    """The tags, without the identity, and fields that a measurement may have.

    Attributes:
        ranges: the plausible values of each field.
    """

    tags: frozenset[str]
    fields: frozenset[str]
    ranges: Mapping[str, Range]


def _declared(tags: str, fields: str) -> Declared:
    ranges = {name: range_of(name) for name in fields.split()}
    return Declared(frozenset(tags.split()), frozenset(ranges), ranges)


DECLARED: Mapping[str, Declared] = {
    "cpu": _declared(
        "",
        "guest_percent idle_percent iowait_percent irq_percent nice_percent softirq_percent "
        "steal_percent system_percent usage_percent user_percent",
    ),
    "cpu_core": _declared(
        "core",
        "guest_percent idle_percent iowait_percent irq_percent nice_percent softirq_percent "
        "steal_percent system_percent usage_percent user_percent",
    ),
    "memory": _declared(
        "",
        "available_bytes buffers_bytes cached_bytes dirty_bytes free_bytes shared_bytes "
        "slab_bytes total_bytes used_bytes used_percent",
    ),
    "swap": _declared(
        "",
        "cached_bytes free_bytes in_bytes_per_second out_bytes_per_second total_bytes "
        "used_bytes used_percent",
    ),
    "load": _declared(
        "",
        "cpu_count load1 load15 load5",
    ),
    "disk": _declared(
        "device mount",
        "free_bytes inodes_free inodes_total inodes_used inodes_used_percent total_bytes "
        "used_bytes used_percent",
    ),
    "diskio": _declared(
        "device",
        "busy_percent in_flight read_bytes_per_second reads_per_second writes_per_second "
        "written_bytes_per_second",
    ),
    "network": _declared(
        "interface",
        "drops_per_second errors_per_second link_up received_bytes_per_second "
        "received_packets_per_second sent_bytes_per_second sent_packets_per_second",
    ),
    "processes": _declared(
        "",
        "blocked context_switches_per_second forks_per_second idle running sleeping stopped "
        "threads total zombies",
    ),
    "uptime": _declared(
        "",
        "uptime_seconds",
    ),
    "sensor": _declared(
        "chip sensor",
        "critical_celsius current_amperes fan_rpm power_watts temperature_celsius voltage_volts",
    ),
    "container": _declared(
        "container image job",
        "cpu_percent cpu_pressure_percent cpu_throttled_percent io_pressure_percent "
        "memory_bytes memory_limit_bytes memory_pressure_percent page_cache_bytes processes "
        "read_bytes_per_second received_bytes_per_second remote_memory_percent restarts "
        "sent_bytes_per_second written_bytes_per_second",
    ),
    "containers": _declared(
        "",
        "created dead exited paused restarting running",
    ),
    "speedtest": _declared(
        "",
        "download_bytes_per_second transferred_bytes upload_bytes_per_second",
    ),
    "inventory": _declared(
        "",
        "cpu_count disk_count gpu_count memory_bytes nic_count",
    ),
    "gpu": _declared(
        "gpu job model uuid",
        "bar1_total_bytes bar1_used_bytes c2c_links c2c_links_active "
        "c2c_received_bytes_per_second c2c_sent_bytes_per_second clocks_idle clocks_set_by_user "
        "compute_mode decoder_utilization_percent dram_active_percent ecc_corrected_aggregate "
        "ecc_corrected_volatile ecc_enabled ecc_uncorrected_aggregate ecc_uncorrected_volatile "
        "encoder_sessions encoder_utilization_percent energy_joules fabric_degraded "
        "fabric_health_mask fabric_registered fan_percent fp16_active_percent "
        "fp32_active_percent fp64_active_percent frame_capture_sessions graphics_clock_hertz "
        "graphics_engine_active_percent integer_active_percent jpeg_utilization_percent lost "
        "low_utilization_seconds max_operating_celsius memory_clock_hertz "
        "memory_clock_max_hertz memory_free_bytes memory_reserved_bytes "
        "memory_temperature_celsius memory_total_bytes memory_used_bytes memory_used_percent "
        "memory_utilization_percent mig_enabled nvlink_errors nvlink_received_bytes_per_second "
        "nvlink_sent_bytes_per_second nvlinks nvlinks_active optical_flow_utilization_percent "
        "pcie_generation pcie_generation_max pcie_received_bytes_per_second pcie_replays "
        "pcie_sent_bytes_per_second pcie_width pcie_width_max performance_state "
        "persistence_mode power_limit_default_watts power_limit_max_watts power_limit_min_watts "
        "power_limit_watts power_watts remapped_rows_corrected remapped_rows_failed "
        "remapped_rows_pending remapped_rows_uncorrected retired_pages_double_bit "
        "retired_pages_pending retired_pages_single_bit shutdown_celsius slowdown_celsius "
        "sm_active_percent sm_clock_hertz sm_clock_max_hertz sm_occupancy_percent "
        "sram_ecc_corrected_aggregate sram_ecc_threshold_exceeded "
        "sram_ecc_uncorrected_aggregate temperature_celsius tensor_active_percent "
        "throttle_reasons throttled throttled_by_board_seconds throttled_by_hardware "
        "throttled_by_heat throttled_by_heat_seconds "
        "throttled_by_power throttled_by_power_seconds "
        "throttled_by_reliability_seconds throttled_by_sync_boost_seconds utilization_percent "
        "vgpu_licensed video_clock_hertz",
    ),
    "gpu_slice": _declared(
        "gpu job model profile slice uuid",
        "dram_active_percent fp16_active_percent fp32_active_percent fp64_active_percent "
        "graphics_engine_active_percent integer_active_percent memory_free_bytes "
        "memory_total_bytes memory_used_bytes memory_used_percent multiprocessors "
        "sm_active_percent sm_occupancy_percent tensor_active_percent",
    ),
    "gpu_link": _declared(
        "gpu job link uuid",
        "active crc_errors received_bytes_per_second recovery_errors replay_errors "
        "sent_bytes_per_second",
    ),
    "gpu_ecc": _declared(
        "gpu job place uuid",
        "corrected_aggregate corrected_volatile uncorrected_aggregate uncorrected_volatile",
    ),
    "gpu_xid": _declared(
        "gpu job uuid xid",
        "events",
    ),
    "gpu_process": _declared(
        "container gpu job owner uuid",
        "memory_used_bytes processes utilization_percent",
    ),
    "gpu_health": _declared(
        "gpu job uuid",
        "findings gpus_missing state",
    ),
    "notification": _declared(
        "host instance plugin severity type type_instance",
        "events",
    ),
    "attempt": _declared(
        "attempt job",
        "cpu_percent memory_bytes",
    ),
    "cluster": _declared(
        "",
        "cpus cpus_allocated gpus gpus_allocated memory_allocated_bytes memory_bytes nodes "
        "nodes_drained nodes_up waiting_jobs",
    ),
    "cluster_node": _declared(
        "node",
        "cpus cpus_allocated gpus gpus_allocated memory_allocated_bytes memory_bytes up",
    ),
    "job_metric": _declared(
        "attempt job name",
        "step value",
    ),
    "agent": _declared(
        "",
        "access_point_failovers access_point_latency_seconds access_point_moves "
        "backlog_points buffered_bytes buffered_points "
        "certificate_remaining_seconds certificate_renewal_failures cpu_percent damaged_bytes "
        "dataset_cache_bytes dataset_fetched_bytes dataset_peer_bytes "
        "dropped_by_age_points dropped_by_size_points dropped_points gather_failures "
        "implausible_readings remote_write_dropped_points remote_write_failures "
        "remote_write_lag_seconds remote_write_rejected_samples remote_write_sent_samples "
        "resident_bytes send_failures sent_points undeliverable_lines",
    ),
    "plugin": _declared(
        "plugin",
        "duration_seconds errors samples timeouts",
    ),
    "appliance_status": _declared(
        "",
        "clock_offset_seconds quarantined reachable",
    ),
    "service_load": _declared(
        "job service",
        "awake_instances concurrent_requests ready_instances requests_per_second wanted_instances",
    ),
    "service_status": _declared(
        "job service",
        "healthy restarts",
    ),
    "job_queue": _declared(
        "",
        "failed_attempts longest_wait_seconds waiting_jobs",
    ),
    "outgoing_messages": _declared(
        "",
        "alerts_used_percent used_percent",
    ),
    "rule_evaluation": _declared(
        "",
        "failing_rules query_seconds rules skipped_evaluations",
    ),
}
