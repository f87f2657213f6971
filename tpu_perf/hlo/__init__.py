"""Reading HLO modules: instructions, what each costs, and which op it computes."""
