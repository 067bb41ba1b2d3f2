"""What Prometheus sees: every metric is declared once in ``families``, counted in ``live`` or read in ``scrape``."""
