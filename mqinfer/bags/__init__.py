"""Frame sources (bags, videos, folders, cameras), their pacing, and a writer of bags."""
