"""What GPU time costs: sums of billing lines, what they lack, and estimates of new jobs."""
