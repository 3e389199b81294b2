"""How a cascade judges a frame: the thresholds, the difference to an earlier frame, and how sure an answer is."""
