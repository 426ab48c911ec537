"""Ops that move data: shapes, transposes, pads, slices, concatenations."""
