"""Parts that networks share."""
