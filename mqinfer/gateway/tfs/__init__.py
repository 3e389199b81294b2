"""The fronts for clients of TensorFlow Serving, over gRPC and REST.

`messages`, `tensors`, `json_tensors`, `examples` and `signatures` translate and know no transport; `calls` runs what
both fronts ask; `grpc` and `rest` are the fronts.
"""
