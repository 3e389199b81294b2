"""Back ends: `load(path, options)` of each returns a `mqinfer.models.backend.Backend`."""
