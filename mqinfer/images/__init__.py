"""Pictures: ROS encodings, decoding, demosaicing of Bayer mosaics, colour, and conversion to a model's input."""
