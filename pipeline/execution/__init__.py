"""Running one stage: identity, lease, tracking, metrics."""
