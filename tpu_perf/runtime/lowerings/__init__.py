"""The lowering table: aten op -> JAX function; one file an op family."""
