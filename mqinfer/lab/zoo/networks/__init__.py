"""The networks of the zoo."""
