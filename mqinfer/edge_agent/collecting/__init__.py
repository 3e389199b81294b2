"""Keep on this machine, in full resolution, the frames that matter, and bring them to a store when told."""
