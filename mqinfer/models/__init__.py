"""Models: repository, back ends, the image contract, and the zoo that builds the networks of the field."""
