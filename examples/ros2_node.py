"""A ROS 2 node: pictures of a topic go to a segmentation model, and its masks are published under their headers.

    source /opt/ros/jazzy/setup.bash
    export MQINFER_BROKER=mqtts://broker.example.org:8883 MQINFER_CA_FILE=ca.crt MQINFER_CERT_FILE=car-1.crt ...
    python3 examples/ros2_node.py --ros-args -p model:=drive_segmentation -r image:=/camera/image_raw -r mask:=/mask

The policy of the stream is `latest`: while the model is busy only the newest picture is kept, so that masks are fresh.
The callback of the subscription never waits; a thread publishes the masks.

The tests run it with a stand-in for rclpy and sensor_msgs, not with ROS 2 itself.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image

from mqinfer import Capture, Client, Outcome, Stream
from mqinfer.codecs import encode_tensor
from mqinfer.errors import MqinferError
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import RawImage


def put(stream: Stream, tensor_name: str, encoding: str, picture: Any) -> None:
    """Send a picture, or put it in the place of the one that is queued."""
    raw = RawImage(
        picture.encoding, picture.height, picture.width, picture.step, picture.is_bigendian, memoryview(picture.data)
    )
    stamp = picture.header.stamp
    capture = Capture("image", capture_time_ns=stamp.sec * 10**9 + stamp.nanosec, frame_id=picture.header.frame_id)
    # With this parameter the worker scales the picture to the size that the model takes.
    tensor = encode_tensor(tensor_name, to_rgb(raw)[None], encoding, {"image_encoding": "rgb8"})
    stream.put({tensor_name: tensor}, capture=capture)


def publish(stream: Stream, publisher: Any, report: Callable[[str], object]) -> None:
    """Publish the masks in the order of the pictures, until the stream is closed."""
    for result in stream:
        if result.outcome is Outcome.SUPERSEDED:
            continue  # a newer picture took its place
        if result.error is not None:
            report(f"picture {result.capture.sequence}: {result.outcome}: {result.error.message}")
            continue
        mask = np.ascontiguousarray(next(iter(result.outputs.values()))[0], np.uint8)
        message = Image(height=mask.shape[0], width=mask.shape[1], step=mask.shape[1], encoding="mono8")
        message.data = array("B", mask.tobytes())
        stamp, message.header.frame_id = message.header.stamp, result.capture.frame_id
        stamp.sec, stamp.nanosec = divmod(result.capture.capture_time_ns or 0, 10**9)
        publisher.publish(message)


def main() -> None:
    """Run the node until it is stopped."""
    rclpy.init(args=sys.argv)
    node = rclpy.create_node("mqinfer")
    report = node.get_logger().warning
    model = node.declare_parameter("model", "drive_segmentation").value
    encoding = node.declare_parameter("encoding", "lz4").value  # jpeg:90 is smaller, and needs the extra edge
    publisher = node.create_publisher(Image, "mask", 10)
    with Client.from_env() as client, client.stream(model, policy="latest", timeout=2.0) as stream:
        contract = client.card(model).image
        if contract is None:
            raise SystemExit(f"model {model} takes no pictures")
        tensor_name = contract.input

        def on_image(picture: Any) -> None:
            try:
                put(stream, tensor_name, encoding, picture)
            except MqinferError as error:  # this picture's fault; the next one may be fine
                report(str(error))

        node.create_subscription(Image, "image", on_image, qos_profile_sensor_data)
        thread = threading.Thread(target=publish, args=(stream, publisher, report))
        thread.start()
        try:
            with suppress(KeyboardInterrupt, ExternalShutdownException):  # which of them depends on the distribution
                rclpy.spin(node)
        finally:
            stream.close()
            thread.join()
            node.destroy_node()
            rclpy.try_shutdown()


if __name__ == "__main__":
    main()
