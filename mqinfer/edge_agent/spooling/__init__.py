"""Keeps frames on the disk while they can't be sent."""
