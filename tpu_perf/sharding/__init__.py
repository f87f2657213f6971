"""Which tensor of a job lies how on a mesh: strategies as data, rules, overrides of the user."""
