"""Metrics, traces and logs. ``metric_families`` declares every metric; ``live_metrics`` counts, ``scrape`` reads."""
