"""Boxes from activation maps, metrics of weakly supervised localisation, and reports on them."""
