"""Scripts that run in a peer's own environment: they know torl's work, and nothing of torl."""
