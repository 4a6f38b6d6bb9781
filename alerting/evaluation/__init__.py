"""Evaluation of rules: windows become values, values change the states of alerts."""
