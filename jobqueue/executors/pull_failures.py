"""Classify failed image pulls by the message of the engine or the registry."""

# Part of the engine's message: reason, advice. The first match counts.
FAILURES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("no matching manifest", "does not match the specified platform"),
        "image_not_found",
        "The image has no version for this appliance's processor; build one, or choose another.",
    ),
    (
        ("unauthorized", "authentication required", "no basic auth credentials"),
        "image_pull_failed",
        "The registry requires credentials: set docker_config_file in the agent's configuration.",
    ),
    (
        ("not found", "manifest unknown", "does not exist", "access denied", "no such image"),
        "image_not_found",
        "Check its name and tag, and whether its registry requires credentials.",
    ),
    (
        ("toomanyrequests", "rate limit"),
        "image_pull_failed",
        "The registry limits anonymous pulls; wait, or configure credentials.",
    ),
    (("no space left",), "start_failed", "Free disk space on the appliance."),
    (
        ("x509", "certificate", "http response to https"),
        "image_pull_failed",
        "The appliance's engine does not trust the registry's certificate; add its CA.",
    ),
)


def pull_failure(image: str, message: str) -> tuple[str, str]:
    """Return reason and message of a failed pull."""
    lowered, text = message.lower(), message.strip().rstrip(".")
    for signs, reason, advice in FAILURES:
        if any(sign in lowered for sign in signs):
            outcome = "not found" if reason == "image_not_found" else "can't be pulled"
            return reason, f"Image {image!r} {outcome}: {text}. {advice}"
    advice = "Check the appliance's access to the registry."
    return "image_pull_failed", f"Image {image!r} can't be pulled: {text}. {advice}"
