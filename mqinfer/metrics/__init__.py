"""What operators measure: the lag of each model, and the metrics that Prometheus reads from each program."""
