"""The link to a broker: paho-mqtt, an in-memory twin with the same contract, and a private Mosquitto."""
