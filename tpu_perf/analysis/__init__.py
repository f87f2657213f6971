"""Functions from stored runs to tables and metrics; never loads torch or jax."""
