"""Frame sources: ROS 1 and ROS 2 bags, video files, folders, cameras and synthetic drives; decoding, demosaicing and pacing."""
