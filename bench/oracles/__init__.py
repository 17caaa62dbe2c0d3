"""Other programs beside ours: drafters, servers and load tools."""
