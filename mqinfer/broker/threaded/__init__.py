"""What links have in common whose connection a thread of their own keeps."""
