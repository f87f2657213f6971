"""The types that flow from measuring to reading, and how they are stored."""
