"""Makes faster versions of a model by conversion, fusing and quantisation, and measures what they lose."""
