"""Commands of the program that stand in files of their own; `poetopt.cli.app` registers them."""
