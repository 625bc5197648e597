"""Integers: what is lost as they are made of fractions, or as they overflow."""
