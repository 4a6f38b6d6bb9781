"""The metrics of a GPU, its slices and its links, whether real or simulated."""

from plugins.base import Metric, MetricKind, counters, flags, gauges, rates

GPU_METRICS: tuple[Metric, ...] = (
    *gauges(
        utilization_percent=("percent", "time with at least one kernel running"),
        memory_utilization_percent=("percent", "time in which memory was read or written"),
        encoder_utilization_percent=("percent", "use of the video encoder"),
        decoder_utilization_percent=("percent", "use of the video decoder"),
        jpeg_utilization_percent=("percent", "use of the JPEG decoder"),
        optical_flow_utilization_percent=("percent", "use of the optical flow accelerator (OFA)"),
        encoder_sessions=("sessions", "sessions of the video encoder"),
        frame_capture_sessions=("sessions", "sessions that capture the frame buffer"),
        graphics_engine_active_percent=("percent", "time with any work on the graphics engine"),
        sm_active_percent=("percent", "multiprocessors with at least one warp, on average"),
        sm_occupancy_percent=("percent", "warps on the multiprocessors, of the most they can have"),
        tensor_active_percent=("percent", "time in which the tensor cores worked"),
        fp64_active_percent=(
            "percent",
            "time in which the FP64 units worked, without tensor cores",
        ),
        fp32_active_percent=(
            "percent",
            "time in which the FP32 units worked, without tensor cores",
        ),
        fp16_active_percent=(
            "percent",
            "time in which the FP16 units worked, without tensor cores",
        ),
        integer_active_percent=("percent", "time in which the integer units worked"),
        dram_active_percent=("percent", "bandwidth of the memory in use"),
        memory_total_bytes=("bytes", "memory of the device"),
        memory_used_bytes=("bytes", "memory allocated by processes"),
        memory_reserved_bytes=("bytes", "memory reserved by driver and firmware"),
        memory_free_bytes=("bytes", "free memory"),
        memory_used_percent=("percent", "memory_used_bytes of memory_total_bytes"),
        bar1_total_bytes=("bytes", "PCIe window (BAR1) through which others access the memory"),
        bar1_used_bytes=("bytes", "mapped part of that window"),
        temperature_celsius=("degrees Celsius", "temperature of the die"),
        memory_temperature_celsius=("degrees Celsius", "temperature of the memory"),
        slowdown_celsius=("degrees Celsius", "temperature at which the hardware slows down"),
        shutdown_celsius=("degrees Celsius", "temperature at which it shuts down"),
        max_operating_celsius=(
            "degrees Celsius",
            "maximum operating temperature of the die",
        ),
        fan_percent=("percent", "target fan speed; absent on passively cooled cards"),
        power_watts=("watts", "current power draw"),
        power_limit_watts=("watts", "enforced power limit"),
        power_limit_default_watts=("watts", "default power limit"),
        power_limit_min_watts=("watts", "lowest power limit that can be set"),
        power_limit_max_watts=("watts", "highest power limit that can be set"),
        sm_clock_hertz=("hertz", "clock of the multiprocessors"),
        memory_clock_hertz=("hertz", "clock of the memory"),
        graphics_clock_hertz=("hertz", "clock of the graphics engines"),
        video_clock_hertz=("hertz", "clock of encoder and decoder"),
        sm_clock_max_hertz=("hertz", "highest clock of the multiprocessors"),
        memory_clock_max_hertz=("hertz", "highest clock of the memory"),
        performance_state=("P-state", "0 is the fastest, 15 the slowest"),
        throttle_reasons=("bit mask", "NVML's bit mask of clock event reasons"),
        pcie_generation=("generation", "PCIe generation in use; lower while idle"),
        pcie_generation_max=("generation", "maximum of GPU and slot"),
        pcie_width=("lanes", "PCIe lanes in use"),
        pcie_width_max=("lanes", "maximum of GPU and slot"),
        nvlinks=("links", "number of NVLinks"),
        nvlinks_active=("links", "NVLinks that are up"),
        c2c_links=("links", "number of links to the CPU (NVLink-C2C)"),
        c2c_links_active=("links", "links to the CPU that are up"),
        fabric_health_mask=("bit mask", "NVML's bit mask of the health of the NVLink fabric"),
        compute_mode=("mode", "0 default, 2 prohibited, 3 one process at a time"),
    ),
    *counters(
        energy_joules=("joules", "energy drawn since the driver was loaded"),
        throttled_by_power_seconds=("seconds", "time throttled by the power limit"),
        throttled_by_heat_seconds=("seconds", "time throttled by the temperature of die or memory"),
        throttled_by_board_seconds=("seconds", "time throttled by limits of the board"),
        throttled_by_sync_boost_seconds=("seconds", "time throttled to the clocks of other GPUs"),
        throttled_by_reliability_seconds=("seconds", "time throttled by limits of reliability"),
        low_utilization_seconds=("seconds", "time with low clocks, as nothing needed higher ones"),
        pcie_replays=("replays", "PCIe replays"),
        nvlink_errors=("errors", "CRC errors, replays and recoveries of all links"),
        ecc_corrected_volatile=("errors", "single-bit errors since the driver was loaded"),
        ecc_uncorrected_volatile=("errors", "double-bit errors since the driver was loaded"),
        ecc_corrected_aggregate=("errors", "single-bit errors over the GPU's lifetime"),
        ecc_uncorrected_aggregate=("errors", "double-bit errors over the GPU's lifetime"),
        sram_ecc_corrected_aggregate=("errors", "errors of caches over the GPU's lifetime"),
        sram_ecc_uncorrected_aggregate=(
            "errors",
            "uncorrectable errors of caches over the GPU's lifetime",
        ),
        retired_pages_single_bit=("pages", "memory retired for repeated single-bit errors"),
        retired_pages_double_bit=("pages", "memory retired for a double-bit error"),
        remapped_rows_corrected=("rows", "memory rows replaced for single-bit errors"),
        remapped_rows_uncorrected=("rows", "memory rows replaced for double-bit errors"),
    ),
    *rates(
        pcie_received_bytes_per_second=("bytes per second", "to the GPU over PCIe"),
        pcie_sent_bytes_per_second=("bytes per second", "from the GPU over PCIe"),
        nvlink_received_bytes_per_second=("bytes per second", "over all links, payload"),
        nvlink_sent_bytes_per_second=("bytes per second", "over all links, payload"),
        c2c_received_bytes_per_second=("bytes per second", "from the CPU over NVLink-C2C"),
        c2c_sent_bytes_per_second=("bytes per second", "to the CPU over NVLink-C2C"),
    ),
    *flags(
        throttled="clocks are reduced because of heat or power",
        throttled_by_heat="throttled by the temperature of die or memory",
        throttled_by_power="throttled by the power limit",
        throttled_by_hardware="throttled by the board: heat, power brake or current",
        clocks_idle="clocks are low because the GPU is idle",
        clocks_set_by_user="clocks are set by a user or administrator",
        ecc_enabled="memory errors are detected and corrected",
        sram_ecc_threshold_exceeded="too many uncorrectable errors of caches: replace the GPU",
        retired_pages_pending="pages will be retired at the next restart",
        remapped_rows_pending="rows will be remapped at the next GPU reset",
        remapped_rows_failed="remapping failed: replace the GPU",
        fabric_registered="the GPU is registered with the NVLink fabric, as CUDA needs it",
        fabric_degraded="the NVLink fabric reports less bandwidth, bad routes or a wrong setup",
        vgpu_licensed="the driver has a license for virtual GPUs",
        lost="the GPU fell off the bus or needs a reset; all other fields are absent",
        mig_enabled="MIG mode is enabled",
        persistence_mode="the driver stays loaded while nothing uses the GPU",
    ),
)

# Memory of a slice has the names of a GPU's.
SLICE_METRICS: tuple[Metric, ...] = gauges(
    multiprocessors=("multiprocessors", "streaming multiprocessors of the slice")
)

LINK_METRICS: tuple[Metric, ...] = (
    *flags(active="the link is up"),
    *rates(
        received_bytes_per_second=("bytes per second", "to the GPU, payload"),
        sent_bytes_per_second=("bytes per second", "from the GPU, payload"),
    ),
    *counters(
        crc_errors=("errors", "packets with a CRC error"),
        replay_errors=("errors", "replayed packets"),
        recovery_errors=("errors", "link retrainings"),
    ),
)

ECC_METRICS: tuple[Metric, ...] = counters(
    corrected_volatile=("errors", "corrected errors since the driver was loaded"),
    uncorrected_volatile=("errors", "uncorrectable errors since the driver was loaded"),
    corrected_aggregate=("errors", "corrected errors over the GPU's lifetime"),
    uncorrected_aggregate=("errors", "uncorrectable errors over the GPU's lifetime"),
)

XID_METRICS: tuple[Metric, ...] = (
    Metric("events", MetricKind.EVENT, "events", "1 at the time of each XID event"),
)

NVML_METRICS = GPU_METRICS + SLICE_METRICS + LINK_METRICS + ECC_METRICS + XID_METRICS
