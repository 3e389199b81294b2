"""Frame sources (bags, videos, folders, cameras, synthetic drives), decoding, demosaicing and pacing."""
