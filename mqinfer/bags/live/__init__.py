"""Live sources: cameras, network streams, topics of ROS 2; one that breaks off is opened again."""
