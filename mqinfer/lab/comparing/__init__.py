"""Compare models over a recording: with each other, and with the truth."""
