"""Ops that select or write by indices, and ops that sample planes."""
