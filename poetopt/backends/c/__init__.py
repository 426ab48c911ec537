"""A plan as C99: emitted, compiled, and run on this machine or on an emulated board.

`poetopt.backends.c.execute` runs and checks one, `poetopt.backends.c.build` writes the folder.
"""
