"""The meaning of what a model returns: masks, boxes, classes and depth, from its outputs and its labels."""
