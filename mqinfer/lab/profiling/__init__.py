"""Measures latency, throughput and peak memory of models by batch size, in every engine that can run them."""
