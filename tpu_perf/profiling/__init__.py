"""Recording any script: steps, schedules, what is captured around them."""
