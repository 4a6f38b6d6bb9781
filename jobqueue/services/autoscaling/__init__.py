"""Services that change their number of instances by themselves, down to none and back."""
