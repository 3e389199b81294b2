"""What recordings show of what they lack, and what to do about it."""
