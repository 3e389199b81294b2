"""Which requests run together, and when: pure, with the clock's reading as an argument."""
