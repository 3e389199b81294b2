"""What the gateway and the dashboard share as servers: bounded connections, TLS, and the file of keys."""
