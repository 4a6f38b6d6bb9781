"""What collectd's types hold, for its Command format, which sends numbers without their names.

A *data source* is one number of a type: its name and its kind (gauge, derive, counter, absolute).
Types that are not listed hold one gauge named `value`.

Source: types.db of collectd 5.12.
"""

from collections.abc import Mapping
from functools import cache

Sources = tuple[tuple[str, str], ...]

# Sources with the types that have them indented below.
_TYPES = """
value:derive =
    apache_bytes apache_requests ath_stat cache_eviction cache_operation cache_result ceph_rate
    commands connections contextswitch cookies cpu derive disk_ops_complex dns_answer dns_notify
    dns_opcode dns_qtype dns_query dns_question dns_rcode dns_reject dns_request dns_resolver
    dns_response dns_transfer dns_update dns_zops drbd_resource errors evicted_keys expired_keys
    filter_result fork_rate fscache_stat hash_collisions http_request_methods http_requests
    http_response_codes ib_errors ib_link_error_recovery ib_xmit_wait if_collisions if_multicast
    if_rx_dropped if_rx_errors if_rx_nohandler if_rx_octets if_rx_packets if_tx_dropped
    if_tx_errors if_tx_octets if_tx_packets invocations ipt_bytes ipt_packets irq job_stats
    memcached_command memcached_ops memory_bandwidth memory_throttle_count mutex_operations
    mysql_bpool_counters mysql_commands mysql_handler mysql_innodb_data mysql_innodb_dblwr
    mysql_innodb_log mysql_innodb_pages mysql_innodb_row_lock mysql_innodb_rows mysql_locks
    mysql_log_position mysql_select mysql_slow_queries mysql_sort mysql_sort_merge_passes
    mysql_sort_rows nfs_procedure nginx_requests node_stat operations packets perf pf_counters
    pf_limits pf_source pf_state pg_blks pg_n_tup_c pg_scan pg_xact protocol_counter
    redis_command_cputime slurm_backfilled_jobs slurm_cycle_depth slurm_cycle_duration
    slurm_cycles slurm_job_stats slurm_queue_length swap_io total_bytes total_connections
    total_events total_objects total_operations total_requests total_sessions total_threads
    total_time_in_ms total_values transitions virt_cpu_total virt_vcpu vmpage_action
rx:derive tx:derive =
    ib_octets ib_packets if_dropped if_errors if_octets if_packets io_octets io_packets
    memcached_octets mysql_octets node_octets serial_octets
read:derive write:derive =
    disk_merged disk_octets disk_ops disk_time io_ops ps_disk_octets ps_disk_ops
vf_rx:derive vf_tx:derive =
    vf_bytes vf_dropped vf_packets
value:counter =
    counter dpdk_telemetry
minflt:derive majflt:derive =
    ps_pagefaults vmpage_faults
vf_value:derive =
    vf_broadcast vf_multicast
value:absolute =
    absolute
uncompressed:derive compressed:derive =
    compression
used:gauge free:gauge =
    df
io_time:derive weighted_io_time:derive =
    disk_io_time
read:gauge write:gauge =
    disk_latency
queries:derive responses:derive =
    dns_octets
state:gauge reason:gauge =
    domain_state
seconds:gauge =
    duration
shortterm:gauge midterm:gauge longterm:gauge =
    load
processes:gauge threads:gauge =
    ps_count
user:derive syst:derive =
    ps_cputime
current:gauge worst:gauge threshold:gauge pretty:gauge =
    smart_attribute
vf_value:gauge =
    vf_link_info
in:derive out:derive =
    vmpage_io
value:gauge threshold:gauge =
    voltage_threshold
demand_data:counter demand_metadata:counter prefetch_data:counter prefetch_metadata:counter =
    arc_counts
read:counter write:counter =
    arc_l2_bytes
current:gauge target:gauge minlimit:gauge maxlimit:gauge =
    arc_size
hits:counter inserts:counter not_cached:counter lowmem_prunes:counter queries_in_cache:gauge =
    mysql_qcache
running:gauge connected:gauge cached:gauge created:counter =
    mysql_threads
"""
_GAUGE: Sources = (("value", "gauge"),)


def sources_of(type_name: str, *, count: int) -> Sources:
    """Return the data sources of a type; of an unknown one gauges named by their place.

    Args:
        type_name: collectd's type.
        count: how many numbers came.
    """
    known = _sources_by_type().get(type_name, _GAUGE)
    if len(known) == count:
        return known
    return tuple((f"value{place}", "gauge") for place in range(1, count + 1))


@cache
def _sources_by_type() -> Mapping[str, Sources]:
    found: dict[str, Sources] = {}
    sources: Sources = ()
    for line in _TYPES.strip().splitlines():
        if line.endswith(" ="):
            names = line.removesuffix(" =").split()
            sources = tuple((name, kind) for name, _, kind in (n.partition(":") for n in names))
        else:
            found |= dict.fromkeys(line.split(), sources)
    return found
