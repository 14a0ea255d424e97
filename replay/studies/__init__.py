"""Published systems on their published set-ups, with the figures reported for them."""
