"""From a stored ladder to metrics, warnings and explanations; loads neither torch nor jax."""
