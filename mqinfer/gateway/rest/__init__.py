"""The Open Inference Protocol over HTTP, with Triton's extensions.

Specification: https://github.com/kserve/open-inference-protocol, and the `protocol` folder of Triton's documentation.
"""
