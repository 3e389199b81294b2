"""Spans for OpenTelemetry, made from the times that are measured anyway, once a request has its outcome.

Only `tracer` imports OpenTelemetry, and only `exporting` imports that, where an endpoint is set.
"""
