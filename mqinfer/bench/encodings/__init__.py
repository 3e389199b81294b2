"""What each encoding of frames costs and keeps: bytes, time, the model's picture and its answers, a thin link."""
