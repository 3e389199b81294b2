"""ROS 2 without ROS: its topics over DDS (`cyclonedds`), its messages as bytes of CDR (`rosbags`)."""
