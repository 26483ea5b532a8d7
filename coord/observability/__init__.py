"""What the running coordinator tells about itself: logs here, metrics beside them."""
