"""A link over NATS with JetStream, by nats-py: the only place that imports it. Experimental."""
