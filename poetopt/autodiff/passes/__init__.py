"""Passes from graph to graph: join in-place operators, group cheap chains into blocks, order for low memory."""
