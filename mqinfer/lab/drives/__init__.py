"""Synthetic drives: road and camera, light, objects beside the road, and their rendering."""
