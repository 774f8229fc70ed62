"""The tiers that ship with datastates; each is found by its entry point."""
