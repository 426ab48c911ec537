"""Describes what moves data: shapes, transposes, pads, pieces put together and cut out."""
