"""The worker: admission, batching, running and answering, one process a model instance under a supervisor."""
