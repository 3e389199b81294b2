"""One model instance on one connection: take requests in, decode, run, reply."""
