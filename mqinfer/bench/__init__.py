"""Measurements, always as ratios between contestants that ran side by side in one run."""
