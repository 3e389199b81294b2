"""Every figure of the five documents that mqinfer answers: published, and measured here beside it."""
