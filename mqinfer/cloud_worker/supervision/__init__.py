"""The processes of a server: planned, started, watched, replaced, and managed over MQTT."""
