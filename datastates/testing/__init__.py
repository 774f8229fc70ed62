"""Conformance suites and fault injection."""
