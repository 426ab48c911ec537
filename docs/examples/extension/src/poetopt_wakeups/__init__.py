"""A package that extends poetopt: a block, a formulation with it, a frontend, a gradient rule, a backend."""
