"""Message definitions of vision_msgs, which rosbags does not have.

Fields of https://github.com/ros-perception/vision_msgs, release 4.1.1 (ROS 2 Humble to Rolling, Apache License 2.0),
without their comments.
"""

from __future__ import annotations

DEFINITIONS = {
    "vision_msgs/msg/Point2D": "float64 x\nfloat64 y\n",
    "vision_msgs/msg/Pose2D": "vision_msgs/Point2D position\nfloat64 theta\n",
    "vision_msgs/msg/BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score\n",
    "vision_msgs/msg/ObjectHypothesisWithPose": (
        "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n"
    ),
    "vision_msgs/msg/Detection2D": (
        "std_msgs/Header header\n"
        "vision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\n"
        "string id\n"
    ),
    "vision_msgs/msg/Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
    "vision_msgs/msg/Classification": "std_msgs/Header header\nvision_msgs/ObjectHypothesis[] results\n",
    "vision_msgs/msg/VisionClass": "uint16 class_id\nstring class_name\n",
    "vision_msgs/msg/LabelInfo": ("std_msgs/Header header\nvision_msgs/VisionClass[] class_map\nfloat32 threshold\n"),
}
"""By type, each behind those that it uses."""
