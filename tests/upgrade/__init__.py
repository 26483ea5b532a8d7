"""Two builds of the coordinator side by side."""
