"""Results in pictures: overlays of masks and boxes, as PNG files and as videos."""
