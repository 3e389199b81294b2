"""Document 004: a cascade of NoScope between an edge and reference servers."""
