"""Step times of TPU slices from compiled programs, with no TPU: knows neither torch nor engines."""
