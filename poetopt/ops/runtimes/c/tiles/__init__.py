"""Operands between storage and RAM chunk by chunk: how, what that takes, and which ways are worth it."""
