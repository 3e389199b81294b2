"""Back ends, one file each: `load(path, options)` gives a `mqinfer.models.backend.Backend`."""
