"""What happens to a request until its outcome: a pure state machine, without a thread, a lock or a link."""
