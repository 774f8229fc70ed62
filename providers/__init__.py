"""The providers that ship with datastates; each is found by its entry point."""
