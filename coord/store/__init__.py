"""The store port and what stands behind it: memory, Redis (SQL later)."""
