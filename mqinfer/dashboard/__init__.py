"""The dashboard: its page, and the way from a browser to the broker."""
