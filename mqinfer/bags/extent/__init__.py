"""What streams and containers show of the pictures that they lack."""
