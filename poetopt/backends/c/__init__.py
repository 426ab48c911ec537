"""A plan as C99: emitted, compiled, and run on this machine or on an emulated board.

`poetopt.backends.c.execute` runs and checks a plan, `poetopt.backends.c.build` writes the folder.
"""
