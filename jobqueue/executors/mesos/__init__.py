"""Runs jobs through the frameworks of Mesos: Marathon, Chronos and Metronome."""
