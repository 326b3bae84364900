"""``make bench``: torl beside its peers, on the same work."""
