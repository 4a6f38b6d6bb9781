"""Metrics of ingest: what senders wrote, and what was not stored."""

from prometheus_client import Counter

INGESTED_BYTES = Counter("vedette_ingest_bytes", "Bytes of samples received, decompressed.")
_POINTS = Counter(
    "vedette_ingest_points",
    "Points and lines received: stored, rejected as invalid, or left out by the kind of store.",
    ["outcome"],
)
STORED_POINTS = _POINTS.labels("stored")
REJECTED_POINTS = _POINTS.labels("rejected")
LEFT_OUT_POINTS = _POINTS.labels("left_out")
