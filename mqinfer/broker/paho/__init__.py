"""A link over MQTT with paho-mqtt: the only place that imports it."""
