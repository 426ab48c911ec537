"""An example of a package that extends poetopt: a block, a formulation with it, and a backend."""
