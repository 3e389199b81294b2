"""Pictures: ROS encodings, demosaicing, mosaics, colour, decoding, and fitting to a model's input."""
