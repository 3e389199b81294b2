"""The gateway: clients of the Open Inference Protocol and of TensorFlow Serving, over HTTP and gRPC, reach the workers.

The fronts translate to and from one core that knows no transport.
"""
