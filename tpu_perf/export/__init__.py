"""From a stored ladder to what people and programs read: one file a format."""
