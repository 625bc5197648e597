"""Learning rates and what schedules them."""
