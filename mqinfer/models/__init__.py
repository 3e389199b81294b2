"""Models: the repository, the back ends that run them, ensembles, post-processing, and the card of each."""
