"""Results as a ROS 2 bag."""
