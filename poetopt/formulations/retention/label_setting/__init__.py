"""An exact search of `retention` without a relaxation: a dynamic program over labels, stage by stage."""
