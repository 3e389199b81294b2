"""The edge: from a source of frames through the window to the sinks that keep the results."""
